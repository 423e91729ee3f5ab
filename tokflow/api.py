"""The whole pipeline in one call, without a YAML."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.results import Reporter
from tokflow.pipeline.run import build_dataset
from tokflow.raw import escaped
from tokflow.record.export_card import write_cards
from tokflow.store.stored_outputs import open_store
from tokflow.tokenizers.tokenizer import fields_of_name


def tokenize_and_save(
    files: str | Path | Sequence[str | Path],
    *,
    tokenizer: str | Mapping[str, Any],
    output: str | Path,
    format: str | Mapping[str, Any] = "bin",  # noqa: A002 (the word users know)
    text: str | Sequence[str] = "text",
    sequence_length: int = 1024,
    split: Mapping[str, Any] | None = None,
    name: str = "dataset",
    jobs: int | None = None,
    reporter: Reporter | None = None,
    **more: Any,
) -> Path:
    """Tokenize raw files and return the folder of the export.

    `files`: a path, glob or URL, or several; a `Path` is no glob. `tokenizer`: a mapping as in the
    YAML, or a name: a tokenizer.json, a .model, a folder, `bytes`, an encoding of tiktoken, else a
    hub id. `output`: the folder that becomes the store, or its URL, so that a second call with the
    same arguments does no work. `format`, `split` and `more` (`documents`, `packing`): as in the
    YAML. `jobs`: processes at once, one for each core by default. Relative paths start here.

    Raises: TokflowError; the first one where several files are bad.
    """
    paths = [files] if isinstance(files, str | Path) else files
    attributes: dict[str, Any] = {
        "name": name,
        "raw": {"files": [escaped(str(p)) if isinstance(p, Path) else p for p in paths]},
        "documents": {"text": text if isinstance(text, str) else list(text)},
        "tokenizer": tokenizer if isinstance(tokenizer, Mapping) else fields_of_name(tokenizer),
        "packing": {"sequence_length": sequence_length},
    }
    own = {"exports": [format], **({"split": split} if split else {})}
    for key, value in {**own, **more}.items():
        both = isinstance(value, Mapping) and key in attributes
        attributes[key] = {**attributes[key], **value} if both else value
    where, here = "tokenize_and_save", Path.cwd()
    dataset = make_dataset(attributes, base=here, store=open_store(output), where=where)
    built = build_dataset(dataset, reporter=reporter, jobs=jobs)
    write_cards(dataset, [of.output for of in built.made])
    return built.export(dataset.exports[0].name).folder

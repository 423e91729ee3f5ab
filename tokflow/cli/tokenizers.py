"""`tokflow tokenizers`: tokenizers side by side: ids, engine, and a measurement on a file."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tokflow.cli.options import (
    Configs,
    Json,
    Names,
    ProjectFolder,
    StoreName,
    Trust,
    select,
)
from tokflow.cli.terminal import exit_status, print_error, print_json, print_table, shown_path
from tokflow.documents import DocumentsConfig, DocumentSource, Render
from tokflow.errors import ConfigError, explained
from tokflow.formatting import size
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.store.integrity import Reading
from tokflow.store.store import Store
from tokflow.store.tables import text_buffers
from tokflow.tokenizers import describe_splitting
from tokflow.tokenizers.auto_tokenizer import describe_rebuilt
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.engines.gate import GatedEngine
from tokflow.tokenizers.tokenizer import (
    Encoding,
    Tokenizer,
    fields_of_name,
    read_encoding,
    scan_tokenizer_json,
)
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.stage import BATCH_BYTES

SAMPLE_BYTES = 4_000_000
"""Bytes of UTF-8 text after which the measurement of a tokenizer ends."""


def report_tokenizer(dataset: Dataset, *, file: Path | None, is_kept: bool) -> dict[str, Any]:
    """Return the JSON document of a dataset's tokenizer, which is made in its store if missing;
    `is_kept`: the store outlives the command.

    It is measured on `file`, read as the dataset reads documents, or else, if it is kept, on the
    first raw file; that of a mixture as its first source has it. `sample` is null without a file,
    `vocab_size_asked` of a tokenizer that is not trained.

    Raises: TokflowError.
    """
    dataset = dataset.sources[0] if dataset.sources else dataset
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    tokenizer, manifest = graph.tokenizer, graph.output("tokenizer").manifest()
    # Any tokenizer can be looked at, one without an EOS too.
    encoding = Encoding(config=dataset.tokenizer, tokenizer=tokenizer, bos_id=None, eos_id=None)
    with Reading():
        render = open_renderer(dataset.documents, tokenizer) if is_kept else None
        engine = engine_for(encoding, dataset.documents)
    if is_kept and file is None:
        file = graph.raw_file(next(iter(graph.sources))).path
    sample = None if file is None else _measure(engine, file, dataset.documents, render)
    fields = asdict(tokenizer)
    del fields["stored"]
    return {
        **fields,
        "folder": tokenizer.folder if is_kept else None,
        "dtype": tokenizer.dtype.name,
        "name": dataset.tokenizer.name,
        "revision": dataset.tokenizer.revision,
        "origin": manifest.details["origin"],
        "engine": engine.name,
        "engine_reason": engine.reason,
        "vocab_size_asked": manifest.recipe.config.get("vocab_size"),
        "splitting": _splitting(tokenizer),
        "auto_tokenizer": describe_rebuilt(tokenizer.folder),
        "sample": sample,
    }


def _measure(
    engine: GatedEngine, path: Path, documents: DocumentsConfig, render: Render | None
) -> dict[str, Any]:
    """Return counts of the first documents of a raw file, without BOS and EOS; `seconds` are of
    encoding alone, starting with cold caches."""
    counts, seconds = Counter[str](), 0.0
    most = min(documents.limit.characters or SAMPLE_BYTES, SAMPLE_BYTES)  # a character has a byte
    limit = documents.limit.model_copy(update={"characters": most})
    limited = documents.model_copy(update={"limit": limit})
    for batch in DocumentSource([path], limited).batches(batch_bytes=BATCH_BYTES, render=render):
        offsets, _ = text_buffers(batch.texts)
        started = time.perf_counter()
        encoded = engine.encode(batch.texts)
        seconds += time.perf_counter() - started
        counts["num_documents"] += len(batch.texts)
        counts["num_chars"] += int(batch.num_chars.sum())
        counts["num_bytes"] += int(offsets[-1] - offsets[0])
        counts["num_tokens"] += len(encoded.token_ids)
        if counts["num_bytes"] >= SAMPLE_BYTES:
            break
    of = {name: counts[f"num_{name}"] for name in ("documents", "chars", "bytes", "tokens")}
    return {
        "path": path,
        **{f"num_{name}": num for name, num in of.items()},
        "seconds": seconds,
        "bytes_per_token": of["bytes"] / of["tokens"] if of["tokens"] else None,
        "tokens_per_character": of["tokens"] / of["chars"] if of["chars"] else None,
        "megabytes_per_second": of["bytes"] / 1e6 / seconds if seconds else 0.0,
    }


def _splitting(tokenizer: Tokenizer) -> str:
    if tokenizer.kind in ("bytes", "sentencepiece"):
        return "none"
    if tokenizer.kind == "tiktoken":
        return str(read_encoding(tokenizer.folder)["pattern"])
    fields = scan_tokenizer_json(tokenizer.folder)
    return describe_splitting(fields["pre_tokenizer"]) if fields else "in its own code"


Column = tuple[str, dict[str, Any] | Exception]
"""Title of a tokenizer, and its report or error."""


MeasuredFile = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="A raw file to measure on, its first 4 MB of text at most; by default the first "
        "of each dataset.",
    ),
]
TextOfFile = Annotated[
    str,
    typer.Option(
        metavar="FIELD",
        help="With --tokenizer: the field or column of --file that holds the text.",
    ),
]

TokenizerNames = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A tokenizer without a dataset: bytes, an encoding of tiktoken, a tokenizer.json, "
        "a .model, a folder or a hub id; can be repeated. Nothing is stored.",
    ),
]


def main(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    tokenizer: TokenizerNames = None,
    file: MeasuredFile = None,
    text: TextOfFile = "text",
    store: StoreName = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> int:
    """Print the tokenizers of datasets, and those named; return the exit status.

    `text` and `trust_remote_code` are for those named: of a dataset its YAML says so.

    Raises: ConfigError.
    """
    if file is not None and not file.is_file():
        raise ConfigError(
            where="--file",
            expected="a raw file on this disk",
            found=f"{str(file)!r}, which is {'a folder' if file.is_dir() else 'missing'}",
            remedy="correct the path, or download a remote file first",
        )
    # All declared ones where nothing is named at all.
    datasets = select(names, configs, store) if names or configs or not tokenizer else []
    asked, columns = [(of.name, of, True) for of in datasets], list[Column]()
    with tempfile.TemporaryDirectory(prefix="tokflow-tokenizers-") as folder:
        for number, name in enumerate(tokenizer or ()):
            fields: dict[str, Any] = dict(fields_of_name(name))
            if fields["kind"] == "huggingface":
                fields["trust_remote_code"] = trust_remote_code
            attributes = {"name": "none", "raw": {"files": ["none"]}, "tokenizer": fields}
            attributes["documents"] = {"text": text}
            how: dict[str, Any] = {"base": Path.cwd(), "where": f"--tokenizer {name}"}
            dataset = make_dataset(attributes, store=Store(Path(folder, str(number))), **how)
            asked.append((name, dataset, False))
        for title, dataset, is_kept in asked:
            try:
                columns.append((title, report_tokenizer(dataset, file=file, is_kept=is_kept)))
            except Exception as error:  # whatever it is, the others are shown
                columns.append((title, error))
    if json:
        print_json({"tokenizers": [_document(*column) for column in columns]})
    else:
        _print([(title, of) for title, of in columns if isinstance(of, dict)])
    errors = [(title, of) for title, of in columns if isinstance(of, Exception)]
    for title, failed in () if json else errors:
        print_error(f"{title}: {explained(failed, where='its tokenizer')}", failed)
    return exit_status(failed for _, failed in errors)


def _document(title: str, report: dict[str, Any] | Exception) -> dict[str, Any]:
    if isinstance(report, Exception):
        report = {"error": explained(report, where=title).fields()}
    return {"title": title, **report}


def _print(reports: Sequence[tuple[str, dict[str, Any]]]) -> None:
    if not reports:
        return
    cells = [_cells(report) for _, report in reports]
    rows = [(label, *(of[label] for of in cells)) for label in cells[0]]
    print_table(("", *(title for title, _ in reports)), [row for row in rows if any(row[1:])])
    print()
    for title, report in reports:
        for note in _notes(report):
            print(f"{title}: {note}")


def _cells(of: dict[str, Any]) -> dict[str, str]:
    """Return the table cells of a tokenizer by label, empty for unknown values."""
    sample = of["sample"] or {}
    rate, share = sample.get("bytes_per_token"), sample.get("tokens_per_character")
    num_ids, asked = of["vocab_size"], of["vocab_size_asked"]
    return {
        "kind": of["kind"],
        "name": of["name"] or "",
        "revision": of["revision"] or "",
        "commit": str(of["origin"].get("commit", ""))[:12],
        "vocab_size": f"{num_ids:,}" if asked in (None, num_ids) else f"{num_ids:,} of {asked:,}",
        "dtype": of["dtype"],
        **{role.upper(): _token(of[f"{role}_token"], of[f"{role}_id"]) for role in ("eos", "bos")},
        "special tokens": f"{len(of['special_tokens']):,}",
        "engine": of["engine"],
        "bytes per token": f"{rate:.3f}" if rate else "",
        "tokens per character": f"{share:.3f}" if share else "",
        "tokens": f"{sample['num_tokens']:,}" if sample else "",
        "MB/s": f"{sample['megabytes_per_second']:.1f}" if sample else "",
    }


def _token(name: str | None, token_id: int | None) -> str:
    return "none" if token_id is None else f"{name} {token_id:,}"


def _notes(of: dict[str, Any]) -> Iterator[str]:
    yield f"{of['engine']}: {of['engine_reason']}"
    if of["splitting"] != "none":
        yield f"splits text by {of['splitting']}"
    if of["auto_tokenizer"] is not None:
        yield of["auto_tokenizer"]
    if sample := of["sample"]:
        first = "the first " if sample["num_bytes"] >= SAMPLE_BYTES else ""
        text = f"{size(sample['num_bytes'])} of text of {shown_path(sample['path'])}"
        yield f"measured on {first}{text}"

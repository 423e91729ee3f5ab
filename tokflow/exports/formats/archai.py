"""archai's cache of tokens, which FastHfDatasetProvider.from_cache opens.

    train.npy, validation.npy, test.npy   np.save of token ids, 1-D, documents end to end; uint16
                                          below 65,536 ids, else int32
    config.json                           how archai would have made them, see the options; no
                                          reader of archai opens it
    lost    where documents begin, but for EOS; of chats, the loss mask

archai pickles its tokenizer beside them, and loads what is there; nothing pickled is written, so
that archai warns and goes on without a tokenizer. Where archai writes the paths that `from_disk`
was given, config.json has those of the YAML: both are found from the folder they start at.

Source: archai 1.0.0, datasets/nlp/fast_hf_dataset_provider.py lines 149-186, 246-277, 380-432.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from tokflow.exports import FileFacts, Format, Layout, Part
from tokflow.exports.formats.npy import load_npy, write_npy
from tokflow.store.config import Config, Listed
from tokflow.store.urls import hub_url

PART_NAMES = ("train", "validation", "test")


class ArchaiOptions(Config):
    """archai: train.npy, validation.npy, test.npy and config.json, a cache of tokens."""

    # The content of config.json, by archai's names; nothing else depends on them.

    dataset_file_path: str | None = None
    """The data that was tokenized; default: `raw.files`. A path starts at the project's folder,
    as in the YAML; of an absolute one outside the last name alone is written."""
    dataset_config_name: Annotated[str | None, Field(exclude_if=lambda name: name is None)] = None
    """Config of a dataset of the hub; default: `raw.config`."""
    tokenizer_name: str | None = None
    """The tokenizer's name_or_path; default: `tokenizer.name`, a path as that of the data; else
    `bytes` or `trained (<dataset>)`."""
    mapping_column_name: Listed[str] | None = None
    """The columns that were tokenized; default: those that the dataset reads."""
    validation_split: float | None = None
    """Share of the documents drawn for validation; default: as `split` has it, 0 where the dataset
    had parts of its own."""
    shuffle: bool | None = None
    """True where documents were shuffled before they were drawn; default: if they were drawn."""
    seed: int | None = None
    """Seed of that; default: that of `split`, or 42 where nothing was drawn."""


NAMED = {
    "dataset_file_path": "source",
    "dataset_config_name": "config_name",
    "tokenizer_name": "tokenizer",
    "mapping_column_name": "columns",
    "validation_split": "drawn_fraction",
    "shuffle": "is_drawn",
    "seed": "seed",
}


def write(part: Part, options: ArchaiOptions, folder: Path) -> Iterator[FileFacts]:
    """Write the tokens of a part."""
    dtype = np.dtype("<u2" if part.vocab_size < 2**16 else "<i4")
    write_npy(folder / f"{part.name}.npy", part.stream(), part.num_tokens, dtype)
    yield {}


def finish(parts: Sequence[Part], options: ArchaiOptions, folder: Path) -> None:
    """Write config.json."""
    config = {
        **_source(options),
        "tokenizer": {"name_or_path": options.tokenizer_name or "", "model_max_length": None},
        "mapping_column_name": list(options.mapping_column_name or ()),
        "validation_split": options.validation_split or 0.0,
        "shuffle": bool(options.shuffle),
        "seed": 42 if options.seed is None else options.seed,
        "use_eos_token": parts[0].eos_id is not None,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _source(options: ArchaiOptions) -> dict[str, str | None]:
    """Return the fields that say what was tokenized: a dataset of the hub, as archai's `from_hub`
    writes them, or files."""
    path = options.dataset_file_path or ""
    if (named := hub_url(path)) is None:
        return {"dataset_file_path": path}
    name, _, files = named
    config = options.dataset_config_name
    return {
        "dataset_name": name,
        "dataset_config_name": config,
        "data_dir": None,
        "data_files": files or None,
    }


FORMAT = Format(
    ArchaiOptions,
    lambda options: Layout("stream", ("token_ids",)),
    write,
    lambda part, *_: f"{part}.npy",
    load=load_npy,
    finish=finish,
    part_names=PART_NAMES,
    named=NAMED,
)

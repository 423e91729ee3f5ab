"""archai's cache of tokens, which FastHfDatasetProvider.from_cache opens.

    train.npy, validation.npy, test.npy   np.save of token ids, 1-D, documents end to end; uint16
                                          below 65,536 ids, else int32
    config.json                           how archai would have made them, see the options
    lost    where documents begin, but for EOS; of chats, the loss mask

archai pickles its tokenizer beside them, and loads what is there; nothing pickled is written, so
that archai warns and goes on without a tokenizer.

Source: archai 1.0.0, datasets/nlp/fast_hf_dataset_provider.py lines 149-186, 246-277, 380-432.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tokflow.exports.format import Arrays, Format, Layout, fixed
from tokflow.exports.formats.npy import npy_header, open_npy
from tokflow.exports.options import check_int32_ids
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.exports.source_names import SourceNames
from tokflow.exports.token_files import write_numbers
from tokflow.store.config import Config, Listed

PART_NAMES = ("train", "validation", "test")

TOKENS_AT_ONCE = 2**22
"""Read at one go."""


class ArchaiOptions(Config):
    """The content of config.json, by archai's names; nothing else depends on it."""

    dataset_file_path: str | None = None
    """The data that was tokenized; default: `raw.files`, of a path its last name."""
    tokenizer_name: str | None = None
    """The tokenizer's name_or_path; default: `tokenizer.name`, of a path its last name; else
    `bytes` or `trained (<dataset>)`."""
    mapping_column_name: Listed[str] | None = None
    """The columns that were tokenized; default: those that the dataset reads."""
    validation_split: float = 0.0
    """Share of the documents drawn for validation; 0: the dataset had parts of its own."""
    shuffle: bool = False
    """True where documents were shuffled before they were drawn."""
    seed: int = 42
    """Seed of that."""


def named(options: ArchaiOptions, names: SourceNames) -> ArchaiOptions:
    """Return the options with what the dataset knows of them."""
    known = {
        "dataset_file_path": names.source,
        "tokenizer_name": names.tokenizer,
        "mapping_column_name": names.columns,
    }
    unset = {name: known[name] for name in known if getattr(options, name) is None}
    return ArchaiOptions(**{**options.model_dump(), **unset})


def write(part: Part, options: ArchaiOptions, folder: Path) -> None:
    """Write the tokens of a part."""
    check_int32_ids(part, where="archai", why="archai has int32")
    dtype = np.dtype("<u2" if part.vocab_size < 2**16 else "<i4")
    header = npy_header((part.num_tokens,), dtype)
    write_numbers(folder / f"{part.name}.npy", part.stream(), header=header, dtype=dtype)


def finish(parts: Sequence[Part], options: ArchaiOptions, folder: Path) -> None:
    """Write config.json."""
    config = {
        "dataset_file_path": options.dataset_file_path or "",
        "tokenizer": {"name_or_path": options.tokenizer_name or "", "model_max_length": None},
        "mapping_column_name": list(options.mapping_column_name or ()),
        "validation_split": options.validation_split,
        "shuffle": options.shuffle,
        "seed": options.seed,
        "use_eos_token": parts[0].eos_id is not None,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def read(export: Export, part: str) -> Iterator[Arrays]:
    """Yield the token ids of a part, some million at a time."""
    for path in export.numbered(lambda number: f"{part}.npy"):
        token_ids = open_npy(path)
        for start in range(0, len(token_ids), TOKENS_AT_ONCE):
            some = token_ids[start : start + TOKENS_AT_ONCE]
            yield {"token_ids": some.astype(export.dtype, copy=False)}


FORMAT = Format(
    description="archai: train.npy, validation.npy, test.npy and config.json, a cache of tokens",
    options=ArchaiOptions,
    layout=fixed(Layout(made_of="stream", keeps=("token_ids",))),
    write=write,
    finish=finish,
    read=read,
    part_names=PART_NAMES,
    named=named,
)

"""datatrove's .ds files, which DatatroveFolderDataset and nanotron read.

    <part>/00000_<part>.ds            token ids, documents end to end, no header; uint16, or uint32
                                      past 65,536 ids (token_size 2 or 4)
    <part>/00000_<part>.ds.index      uint64 per document: its end in this file, in tokens
    <part>/00000_<part>.ds.metadata   three lines: tokenizer|token_size, tokens, tokens for people
    <part>/00000_<part>.ds.loss       of chats alone: one byte per token, 1 at loss tokens
    lost                              documents without tokens: the reader takes an end that it
                                      finds twice for none, and counts positions on

All little-endian. A part has a folder of its own, which is what a reader is given, and whole
documents in each file; a reader leaves out what does not fill its last row of a file.

Source: datatrove 0.10.1, pipeline/tokens/tokenizer.py lines 24-270 (TokenizedFile) and
utils/dataset.py lines 30-210.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokflow.errors import ConfigError
from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part
from tokflow.exports.options import ShardOptions
from tokflow.exports.token_files import cut_by_documents, write_numbers
from tokflow.store.config import Size
from tokflow.store.tables import offsets_of

UNKNOWN = "Unknown Tokenizer"
"""The name that datatrove gives a tokenizer without one."""


class DatatroveOptions(ShardOptions):
    """datatrove, nanotron: <part>/<i>_<part>.ds with .index and .metadata."""

    shard_size: Size | None = None
    """Most bytes of tokens in a file, such as 500MB (max_tokens_per_file counts tokens); only a
    longer document makes a larger one. Default: one file per part."""
    tokenizer_name_or_path: str | None = None
    """The tokenizer's name in .ds.metadata; default: `tokenizer.name`, a path as in the YAML, of an
    absolute one outside the project's folder its last name; else `bytes` or `trained (<dataset>)`.
    """

    def check(self) -> None:
        """Refuse options that do not go together."""
        super().check()
        name = self.tokenizer_name_or_path or UNKNOWN
        if not name.isprintable() or "|" in name:
            raise ConfigError(
                where="tokenizer_name_or_path",
                expected="a name in one line and without |, which ends it in .ds.metadata",
                found=repr(name),
                remedy="give the tokenizer another name by this option",
            )


def write(part: Part, options: DatatroveOptions, folder: Path) -> Iterator[FileFacts]:
    """Write a part into a folder of its own."""
    name = options.tokenizer_name_or_path or UNKNOWN
    for shard in cut_by_documents(part, options, has_loss_mask=True):
        path = folder / _name(part.name, shard.number)
        write_numbers(path, shard.tokens)
        ends = np.cumsum(shard.lengths[shard.lengths > 0])
        write_numbers(Path(f"{path}.index"), [ends.astype("<u8")])
        num_tokens = f"{shard.num_tokens}\n{_for_people(shard.num_tokens)}"
        metadata = f"{name}|{part.dtype.itemsize}\n{num_tokens}"
        Path(f"{path}.metadata").write_text(metadata, encoding="utf-8")
        if shard.loss_mask is not None:
            write_numbers(Path(f"{path}.loss"), shard.loss_mask)
        yield {}


def _name(part: str, number: int, *_: Any) -> str:
    return f"{part}/{number:05d}_{part}.ds"


def _for_people(num_tokens: int) -> str:
    """Return three digits and a prefix, such as `1.72 MT`, as humanize 4.17 does."""
    exponent = len(str(num_tokens)) - 1
    for exponent_ in (exponent, exponent + 1):  # 999,999 is rounded to 1.00 M
        text = f"{num_tokens / 1000 ** (exponent_ // 3):.{2 - exponent_ % 3}f}"
        if float(text) < 10 ** (exponent_ % 3 + 1):
            break
    return f"{text} {['', *'kMGTPE'][exponent_ // 3]}T"


def _load(export: Export, name: str) -> Arrays:
    stored = export.stored
    ends = np.fromfile(stored.file(f"{name}.index"), dtype="<u8").astype(np.int64)
    fields: Arrays = {
        "token_ids": export.stored.numbers(name, export.dtype),
        "offsets": offsets_of(np.diff(ends, prepend=0)),
    }
    if f"{name}.loss" in export.manifest.files:
        fields["loss_mask"] = stored.numbers(f"{name}.loss", np.bool_)
    return fields


FORMAT = Format(
    DatatroveOptions,
    lambda options: Layout("stream", ("token_ids", "offsets", "loss_mask"), leaves_out_empty=True),
    write,
    _name,
    beside=lambda name: [f"{name}{suffix}" for suffix in (".index", ".loss", ".metadata")],
    load=_load,
    named={"tokenizer_name_or_path": "tokenizer"},
)

"""New files of an export, hashed while they are written; and what of them is a copy of tokens, so
that a server can copy it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tokflow.errors import CorruptOutputError
from tokflow.exports.part import Part
from tokflow.split.spans import Split
from tokflow.store.copies import SHORT_BYTES, CopiedRange, note_copies
from tokflow.store.hashed_writer import HashedWriter
from tokflow.store.listed_files import Stamp
from tokflow.store.manifest import FileEntry
from tokflow.store.tables import to_numpy
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import TOKENS_NAME

_written: dict[Path, tuple[FileEntry, Stamp]] = {}
"""Files that were made here, and how they looked then."""

COPY_BYTES = 2**28
"""Copied by one call, which cannot be interrupted."""


@contextmanager
def open_hashed(path: Path) -> Iterator[HashedWriter]:
    """Open a new file, in a folder that is made if need be."""
    path.parent.mkdir(exist_ok=True)
    with HashedWriter(path) as file:
        yield file
    _written[path] = file.entry(), Stamp.of(path.stat())


def copy_file(path: Path, entry: FileEntry, new: Path) -> None:
    """Copy a file of this entry, which the copy takes over, so that whoever compares the two finds
    a copy that is not equal.

    The kernel copies, without any byte in this process, or on some file systems in no time; where
    it copies less than all, as some file systems have it, this process does.

    Raises: CorruptOutputError where the file has not the size of its entry.
    """
    with path.open("rb") as source, new.open("wb") as file:
        with suppress(AttributeError, OSError):  # of a kernel that does not copy between the two
            while os.copy_file_range(source.fileno(), file.fileno(), COPY_BYTES):
                pass
        if os.fstat(file.fileno()).st_size != entry.num_bytes:
            source.seek(0)
            file.seek(0)
            file.truncate()
            shutil.copyfileobj(source, file, COPY_BYTES // 16)
    stamp = Stamp.of(new.stat())
    if stamp.num_bytes != entry.num_bytes:
        raise CorruptOutputError(
            where=path,
            expected=f"{entry.num_bytes:,} bytes to copy",
            found=f"{stamp.num_bytes:,}",
            remedy="run `tokflow run` again, which makes what is damaged again",
        )
    _written[new] = entry, stamp
    note_copies(new, [CopiedRange(0, path, 0, entry.num_bytes)])


def take_hashed(folder: Path) -> dict[str, FileEntry]:
    """Return size and sha256 of the files below `folder` that were made here, by path there; but
    not of those that were written to since. They are forgotten here."""
    paths = [path for path in _written if path.is_relative_to(folder)]
    found = {path: _written.pop(path) for path in paths}
    return {
        path.relative_to(folder).as_posix(): entry
        for path, (entry, stamp) in found.items()
        if path.exists() and Stamp.of(path.stat()) == stamp
    }


def note_copied_tokens(part: Part, path: Path, dtype: np.dtype[Any]) -> None:
    """Note which ranges of a file are copies, to which `part.stream()` was written as `dtype`, and
    nothing else; those too short for a server to copy are left out."""
    is_long = part.num_tokens * dtype.itemsize >= SHORT_BYTES
    if (
        is_long
        and part.shuffled is None
        and all(split.shard.dtype == dtype for split in part.splits)
    ):
        note_copies(path, _copied(part))


def _copied(part: Part) -> Iterator[CopiedRange]:
    position = 0  # of tokens in the file
    for split in part.splits:
        for start, stop, at in _runs(split, part.name):
            yield from _in_files(split.shard, start, stop, position + at)
        position += split.manifest.counts[f"{part.name}.num_tokens"]


def _runs(split: Split, part: str) -> Iterator[tuple[int, int, int]]:
    """Yield where runs of tokens begin and end among those of the shard, and at which of the part's
    tokens: long ones, of spans that follow each other."""
    spans = split.span_table(part)
    starts, lengths = to_numpy(spans["token_start"]), to_numpy(spans["num_tokens"])
    ends, at = starts + lengths, np.cumsum(lengths) - lengths
    is_first = np.concatenate([[True], starts[1:] != ends[:-1]])[: len(starts)]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(starts))[: len(firsts)] - 1
    is_long = (ends[lasts] - starts[firsts]) * split.shard.dtype.itemsize >= SHORT_BYTES
    for first, last in zip(firsts[is_long].tolist(), lasts[is_long].tolist(), strict=True):
        yield int(starts[first]), int(ends[last]), int(at[first])


def _in_files(shard: TokenShard, start: int, stop: int, position: int) -> Iterator[CopiedRange]:
    """Yield the ranges of files that have the tokens between two positions of a shard; those of cut
    documents are in none of its files."""
    size = shard.dtype.itemsize
    names = shard.names(TOKENS_NAME)
    sizes = [shard.manifest.files[name].num_bytes // size for name in names]
    edges = np.cumsum([0, *sizes]).tolist()
    for name, (first, end) in zip(names, pairwise(edges), strict=True):
        low, high = max(start, first), min(stop, end)
        if low < high:
            at = (position + low - start) * size
            yield CopiedRange(at, shard.folder / name, (low - first) * size, (high - low) * size)

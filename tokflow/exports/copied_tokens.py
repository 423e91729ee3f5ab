"""Token ids that an export's file has as token shards have them, so that a server can copy them."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tokflow.exports.part import Part
from tokflow.split.spans import Split
from tokflow.store.arrow import to_numpy
from tokflow.store.copies import SHORT_BYTES, CopiedRange, note_copies
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.writer import TOKENS_NAME


def note_copied_tokens(part: Part, path: Path, dtype: np.dtype[Any]) -> None:
    """Note which ranges of a file are copies, to which `part.stream()` was written as `dtype`, and
    nothing else; those too short for a server to copy are left out."""
    if part.shuffled is None and all(split.shard.dtype == dtype for split in part.splits):
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

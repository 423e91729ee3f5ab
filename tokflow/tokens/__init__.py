"""Tokens of several files, read as one array."""

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tokflow.store.tables import madvise

Positions: TypeAlias = npt.NDArray[np.int64]
"""Starts of runs of tokens, or their lengths; one per run."""

SHORT_RUN = 128
"""Tokens: runs that are shorter on average, as of shuffled documents, are read by the position of
each token. Runs of 20 tokens take 0.2 us each and not 1.1, of 200 tokens 0.6 and not 1.7."""

RUNS_AT_ONCE = 2**12
"""Short runs gathered at once, so that their positions stay in the cache."""


READ_BYTES = 2**12
"""Size up to which a file is read: to map it takes longer, and a page of memory at least; an empty
one cannot be mapped."""


def mapped(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the numbers of a file, memory-mapped read-only; those of a small one are read.

    A plain array over the map: its slices cost a fifth of a memmap's.
    """
    if path.stat().st_size <= READ_BYTES:
        return np.frombuffer(path.read_bytes(), dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Tokens in one or more files, end to end, or what there is one of for each of them, such as
    the loss mask. A position counts from the first token of the first file."""

    files: tuple[npt.NDArray[Any], ...]
    """One-dimensional, of one dtype; at least one."""
    _edges: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The position at which each file begins, and the end of the last."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_edges", tuple(accumulate(map(len, self.files), initial=0)))

    def __len__(self) -> int:
        return self._edges[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of each."""
        return self.files[0].dtype

    def take(self, starts: Positions, lengths: Positions) -> npt.NDArray[Any]:
        """Return the tokens of many spans or segments, end to end; neighbours are read at one go.

        Neighbours within a file are a view, not read before it is looked at.
        """
        if len(starts) == 0:
            return self.files[0][:0]
        is_new = np.ones(len(starts), dtype=bool)
        is_new[1:] = starts[1:] != starts[:-1] + lengths[:-1]
        first = np.flatnonzero(is_new)
        starts, sizes = starts[first], np.add.reduceat(lengths, first)
        if len(sizes) == 1:
            return self.read(int(starts[0]), int(starts[0] + sizes[0]))
        found = np.empty(sizes.sum(), dtype=self.dtype)
        self.fill(found, np.cumsum(sizes) - sizes, starts, sizes)
        return found

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Return the tokens from one position to another; a view where one file has them all.

        The files are looked up, not gone through: a shard of hundreds has thousands of spans.
        """
        stop = len(self) if stop is None else stop
        first = min(max(0, bisect_right(self._edges, start) - 1), len(self.files) - 1)
        last = max(first + 1, bisect_left(self._edges, min(stop, self._edges[-1])))
        found = [
            file[max(0, start - begin) : max(0, stop - begin)]
            for file, begin in zip(self.files[first:last], self._edges[first:last], strict=False)
        ]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def fill(
        self, found: npt.NDArray[Any], at: Positions, starts: Positions, lengths: Positions
    ) -> None:
        """Copy the tokens of many spans into `found`, those of each from its position in `at`."""
        if lengths.sum() >= SHORT_RUN * len(lengths):
            spans = zip(at.tolist(), starts.tolist(), lengths.tolist(), strict=True)
            for place, start, size in spans:
                found[place : place + size] = self.read(start, start + size)
            return
        stops = starts + lengths
        low = max(0, bisect_right(self._edges, int(starts.min())) - 1)
        high = bisect_left(self._edges, int(stops.max()))
        for number in range(low, high):
            begin, end = self._edges[number : number + 2]
            # Of a run that goes on in the next file, the share of this one.
            touching = np.flatnonzero((starts < end) & (stops > begin))
            for first in range(0, len(touching), RUNS_AT_ONCE):
                some = touching[first : first + RUNS_AT_ONCE]
                lower = np.maximum(starts[some], begin)
                sizes = np.minimum(stops[some], end) - lower
                taken = self.files[number][positions_of_runs(lower - begin, sizes)]
                found[positions_of_runs(at[some] + lower - starts[some], sizes)] = taken

    def release(self) -> None:
        """Give back the memory of what was read of the mapped files; it is read again if need be.

        Without it a process that goes through a file of 1 GB holds 1 GB in the end.
        """
        for map_ in filter(None, map(_map_of, self.files)):
            map_.madvise(mmap.MADV_DONTNEED)

    def expect(self, starts: Positions, lengths: Positions) -> None:
        """Ask the system to read the tokens of many spans ahead; see `read_ahead`."""
        for file, (begin, end) in zip(self.files, pairwise(self._edges), strict=True):
            if _map_of(file) is not None:
                some = (starts < end) & (starts + lengths > begin)
                first = np.maximum(starts[some], begin)
                read_ahead(file, first - begin, np.minimum((starts + lengths)[some], end) - first)


def read_ahead(values: npt.NDArray[Any], starts: Positions, lengths: Positions) -> None:
    """Ask the system to read stretches of memory-mapped values, or rows, ahead, and nothing beside
    them.

    For files that do not fit into memory: without it each stretch costs 100 kB and more that are
    read in vain, with it a page or two. Stretches that follow each other are read at one go.
    Changes nothing of what is in the values.
    """
    if (advise := madvise()) is None or not len(starts):
        return
    page, address, size = mmap.PAGESIZE, values.__array_interface__["data"][0], values.strides[0]
    advise(address // page * page, len(values) * size + address % page, mmap.MADV_RANDOM)
    stops = np.minimum(starts + lengths, len(values))
    is_new = np.ones(len(starts), dtype=bool)
    is_new[1:] = (starts[1:] > stops[:-1]) | (starts[1:] < starts[:-1])
    first = np.flatnonzero(is_new)
    begin = (address + starts[first] * size) // page * page
    num_bytes = address + np.maximum.reduceat(stops, first) * size - begin
    for at, num in zip(begin.tolist(), num_bytes.tolist(), strict=True):
        advise(at, num, mmap.MADV_WILLNEED)


def _map_of(file: npt.NDArray[Any]) -> mmap.mmap | None:
    """Return the memory map behind an array, if it is one that takes advice."""
    base: Any = file
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") else None


class Tokens(Protocol):
    """Tokens that are taken by their positions: of one token shard, or of many."""

    def take(self, starts: Positions, lengths: Positions) -> npt.NDArray[Any]:
        """Return the tokens of many spans or segments, end to end."""

    def release(self) -> None:
        """Give back the memory of what was read."""


def taken_in_batches(
    source: Tokens,
    starts: Positions,
    lengths: Positions,
    num_tokens: int,
    *,
    gathered: int | None = None,
) -> Iterator[npt.NDArray[Any]]:
    """Yield the tokens of `take`, at most `num_tokens` at a time, and give the memory back.

    `gathered`: tokens taken at once; default: `num_tokens`.
    """
    at_once = gathered or num_tokens
    if len(lengths) and lengths.max() > at_once:  # longer spans are cut
        counts = np.maximum(1, -(-lengths // at_once))
        nth = positions_of_runs(np.zeros_like(counts), counts)
        starts = np.repeat(starts, counts) + nth * at_once
        lengths = np.minimum(np.repeat(lengths, counts) - nth * at_once, at_once)
    batch = (np.cumsum(lengths) - lengths) // at_once
    edges = [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(batch)]
    for first, last in pairwise(edges):
        taken = source.take(starts[first:last], lengths[first:last])
        for start in range(0, len(taken), num_tokens):
            yield taken[start : start + num_tokens]
            source.release()


def positions_of_runs(starts: Positions, lengths: Positions) -> Positions:
    """Return the positions of runs, end to end: for starts of 7 and 2, lengths of 2 and 3,
    [7 8 2 3 4]."""
    ends = np.cumsum(lengths)
    positions: Positions = np.repeat(starts - (ends - lengths), lengths)
    positions += np.arange(len(positions))
    return positions

"""A file of which some blocks have come: the file itself with holes, and behind its end which.

    .<name>.part    num_bytes, and a byte for each block of BLOCK_BYTES that is 1 where it has come,
                    and the beginning of the sha256 of the whole

Who reads or writes it holds its lock (`part_files.alone`). A file that is fetched whole has the
same name and no such end. What is noted is on the disk, so that a machine that loses power leaves
nothing wrong.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokflow.store.remote.parts import PART_BYTES, ranges_of

if TYPE_CHECKING:
    from tokflow.store.manifest import FileEntry

BLOCK_BYTES = 1 << 20
"""The least that is fetched: a third of what 20 ms of latency are worth at 1 Gbit/s."""

_MOST_AHEAD = 16
"""Blocks."""

_DIGITS = 16

Range = tuple[int, int]
"""Where bytes of a file begin and end."""


def has_blocks(part: Path, entry: "FileEntry") -> bool:
    """Return whether blocks of a file, as its manifest lists it, are in a part file."""
    with part.open("rb") as file:
        return _blocks_in(file.fileno(), entry) is not None


class BlocksHere:
    """The blocks of a file in its part file, which is made one of no blocks if it is none."""

    def __init__(self, descriptor: int, entry: "FileEntry") -> None:
        self._descriptor, self._size = descriptor, entry.num_bytes
        here = _blocks_in(descriptor, entry)
        if here is None:
            here = np.zeros(_num_blocks(entry), dtype=np.bool_)
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, entry.num_bytes + len(here))
            os.pwrite(descriptor, _digest(entry), entry.num_bytes + len(here))
        self._here = here

    @property
    def num_bytes(self) -> int:
        """Bytes that are here, or a block more."""
        return int(np.count_nonzero(self._here)) * BLOCK_BYTES

    def missing(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the ranges that are to be fetched, so that all of those are here; behind blocks
        that are here as many more, for who reads on."""
        wanted = np.zeros(len(self._here), dtype=np.bool_)
        for start, stop in ranges:
            if start < stop:
                wanted[start // BLOCK_BYTES : -(-stop // BLOCK_BYTES)] = True
        for first, last in _runs(wanted & ~self._here):
            before = self._here[max(0, first - _MOST_AHEAD) : first][::-1]
            num_before = len(before) if before.all() else int(before.argmin())
            wanted[last : last + num_before] = True
        joined = [(a * BLOCK_BYTES, b * BLOCK_BYTES) for a, b in _runs(wanted & ~self._here)]
        return [each for start, stop in joined for each in self._cut(start, stop)]

    def rest(self) -> list[Range]:
        """Return the ranges that are to be fetched for the whole: no more of them than those in
        which it would come by itself."""
        found = []
        for start, stop in ranges_of(self._size):
            if away := self.missing([(start, stop)]):
                found.append((away[0][0], min(stop, away[-1][1])))
        return found

    def note(self, ranges: Iterable[Range]) -> None:
        """Remember that ranges, which `missing` gave, have come."""
        os.fdatasync(self._descriptor)
        for start, stop in ranges:
            self._here[start // BLOCK_BYTES : -(-stop // BLOCK_BYTES)] = True
        os.pwrite(self._descriptor, self._here.tobytes(), self._size)

    def _cut(self, start: int, stop: int) -> Iterator[Range]:
        for first in range(start, stop, PART_BYTES):
            yield first, min(first + PART_BYTES, stop, self._size)


def _runs(chosen: npt.NDArray[np.bool_]) -> list[Range]:
    """Return where runs of what is chosen begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]])))
    return [(start, stop) for start, stop in edges.reshape(-1, 2).tolist()]


def _blocks_in(descriptor: int, entry: "FileEntry") -> npt.NDArray[np.bool_] | None:
    """Return which blocks of a file are in a part file; None where it is no file of blocks."""
    num_blocks, known = _num_blocks(entry), _digest(entry)
    if os.fstat(descriptor).st_size != entry.num_bytes + num_blocks + len(known):
        return None
    end = os.pread(descriptor, num_blocks + len(known), entry.num_bytes)
    return np.frombuffer(end[:num_blocks], np.bool_).copy() if end[num_blocks:] == known else None


def _num_blocks(entry: "FileEntry") -> int:
    return -(-entry.num_bytes // BLOCK_BYTES)


def _digest(entry: "FileEntry") -> bytes:
    return entry.sha256[:_DIGITS].encode()

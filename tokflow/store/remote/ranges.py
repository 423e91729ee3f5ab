"""Ranges of large files at a URL, where little of them is read.

What was read is kept in the file's blocks on this disk. Ranges are not compared with the checksum
of the file, which tells of the whole alone; the whole is, when it comes.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from tokflow.store.positioned import PositionedReader
from tokflow.store.remote.blocks_here import BlocksHere, Range
from tokflow.store.remote.cache_limit import note_bytes, note_use
from tokflow.store.remote.cached_files import (
    fetched,
    key_of,
    listed_entry,
    not_fetched,
    raise_if_removed,
)
from tokflow.store.remote.keys import output_folder
from tokflow.store.remote.part_files import alone
from tokflow.store.remote.places import Place, place_of

SMALL_BYTES = 1 << 24
"""A file of so many bytes comes whole: one request."""

SHARE = 8
"""Of a file of which more than an eighth has been asked for the rest comes, too."""


def is_far(path: Path) -> bool:
    """Return whether a file is worth being read in ranges: a large one at a URL, not here."""
    return place_of(path) is not None and not path.exists() and size_of(path) > SMALL_BYTES


def read_ranges(path: Path, ranges: Sequence[Range]) -> list[bytes]:
    """Return the bytes of ranges of a file, which stays elsewhere but for the blocks that they are
    in; all of it comes where that is much of it.

    Raises: as `fetched`.
    """
    place = place_of(path)
    for _ in range(8 if place is not None else 0):
        try:
            return _read(path, ranges)
        except FileNotFoundError:
            assert place is not None
            found = _read_blocks(place, path, ranges)
        if found is not None:
            return found
        fetched(path)
    return _read(path, ranges)


def _read(path: Path, ranges: Sequence[Range]) -> list[bytes]:
    with path.open("rb", buffering=0) as file:
        return [_pread(file.fileno(), *each) for each in ranges]


def _read_blocks(place: Place, path: Path, ranges: Sequence[Range]) -> list[bytes] | None:
    """Return the bytes of ranges from the blocks of a file; None where all of it is to come, or
    has come meanwhile."""
    folder = output_folder(place, path)
    entry = None if folder is None else listed_entry(folder, path)
    if folder is None or entry is None:
        return None
    note_use(folder)
    with raise_if_removed(place, folder), alone(path) as part:
        if part is None:
            return None
        with part.open("r+b", buffering=0) as file:
            blocks = BlocksHere(file.fileno(), entry)
            if missing := blocks.missing(ranges):
                if blocks.num_bytes + sum(b - a for a, b in missing) > entry.num_bytes / SHARE:
                    return None
                key = key_of(place, folder, path)
                if not place.objects.get_ranges(key, file.fileno(), missing):
                    raise not_fetched(place, folder, path, entry, "none, or less")
                blocks.note(missing)
                note_bytes(sum(stop - start for start, stop in missing))
            return [_pread(file.fileno(), *each) for each in ranges]


def _pread(descriptor: int, start: int, stop: int) -> bytes:
    data = os.pread(descriptor, stop - start, start)
    while len(data) < stop - start and (more := os.pread(descriptor, 2**30, start + len(data))):
        data += more[: stop - start - len(data)]
    return data


def size_of(path: Path) -> int:
    """Return the size of a file elsewhere; 0 of one that no manifest lists."""
    place = place_of(path)
    folder = None if place is None else output_folder(place, path)
    entry = None if folder is None else listed_entry(folder, path)
    return 0 if entry is None else entry.num_bytes


class RangesFile(PositionedReader):
    """A file at a URL, open for a library that reads little of it, as pyarrow does a footer and a
    row group."""

    def __init__(self, path: Path) -> None:
        super().__init__(size_of(path))
        self._path = path

    def readinto(self, buffer: Any) -> int:
        """Read bytes into `buffer`, as many as it takes or the file has."""
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self._num_bytes)
        if stop <= self._position:
            return 0
        [data] = read_ranges(self._path, [(self._position, stop)])
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def few_of(path: Path) -> Path | RangesFile:
    """Return what a library opens that reads little of a file: the file, which is on this disk, or
    ranges of it."""
    return RangesFile(path) if is_far(path) else fetched(path)


def open_few(path: Path) -> BinaryIO:
    """Return a file, open for who reads little of it."""
    few = few_of(path)
    return few.open("rb") if isinstance(few, Path) else cast(BinaryIO, few)

"""Ranges of large files at a URL, of which little is read: a request for each, and nothing is kept.

They are not compared with the checksum of the file, which tells of the whole alone.
"""

import io
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from tokflow.store.arrow import map_numbers
from tokflow.store.positioned import PositionedReader
from tokflow.store.remote import by_path
from tokflow.store.remote.cached_files import (
    key_of,
    listed_entry,
    not_fetched,
    raise_if_removed,
)
from tokflow.store.remote.keys import output_folder
from tokflow.store.remote.places import place_of

SMALL_BYTES = 1 << 24
"""A file of so many bytes comes whole: one request."""

READ_AHEAD = 1 << 16
"""Bytes that come with a header, or a footer."""


def is_far(path: Path) -> bool:
    """Return whether a file is worth being read in ranges: a large one at a URL, not here."""
    return place_of(path) is not None and not path.exists() and _size_of(path) > SMALL_BYTES


def _size_of(path: Path) -> int:
    """Return the size of a file at a URL; 0 of one that no manifest lists."""
    place = place_of(path)
    folder = None if place is None else output_folder(place, path)
    entry = None if folder is None or place is None else listed_entry(place, folder, path)
    return 0 if entry is None else entry.num_bytes


def read_range(path: Path, start: int, stop: int) -> bytes:
    """Return the bytes of a file between two positions, which it has; of one that is at a URL, and
    not here, by a request.

    Raises: as `fetched`.
    """
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)
    place = place_of(path)
    folder = None if place is None else output_folder(place, path)
    assert place is not None
    assert folder is not None  # as `is_far` has found
    with raise_if_removed(place, folder):
        if (entry := listed_entry(place, folder, path)) is None:
            raise FileNotFoundError(path)
        data = place.objects.read(key_of(place, folder, path), start, stop)
    if data is None or len(data) < stop - start:
        raise not_fetched(place, folder, path, entry, "none, or less")
    return data


def open_lazily(path: Path) -> BinaryIO:
    """Return a file, open for a reader of little of it, such as a header, or a footer and a row
    group."""
    if is_far(path):
        return cast(BinaryIO, io.BufferedReader(_Ranges(path), READ_AHEAD))
    return by_path.fetched(path).open("rb")


class _Ranges(PositionedReader):
    """A file at a URL whose bytes come when they are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(_size_of(path))
        self._path = path

    def readinto(self, buffer: Any) -> int:
        """Read bytes into `buffer`, as many as it takes or the file has."""
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self._num_bytes)
        if stop <= self._position:
            return 0
        data = read_range(self._path, self._position, stop)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def lazy_numbers(
    path: Path,
    dtype: npt.DTypeLike,
    *,
    first_byte: int = 0,
    shape: tuple[int, ...] | None = None,
) -> npt.NDArray[Any]:
    """Return the numbers of a file from a byte on, memory-mapped; of a large one at a URL that is
    not here `LazyNumbers`, which have no more of an array than is said there."""
    dtype = np.dtype(dtype)
    if is_far(path):
        shape = shape or ((_size_of(path) - first_byte) // dtype.itemsize,)
        return cast(npt.NDArray[Any], LazyNumbers(path, dtype, first_byte, shape))
    num = -1 if shape is None else int(np.prod(shape))
    values = map_numbers(path, dtype, first_byte=first_byte, num=num)
    return values if shape is None else values.reshape(shape)


class LazyNumbers:
    """Numbers, or rows of numbers, of a large file at a URL: a slice is a request for its bytes;
    for anything else the file is fetched."""

    def __init__(
        self, path: Path, dtype: np.dtype[Any], first_byte: int, shape: tuple[int, ...]
    ) -> None:
        self.path, self.dtype, self.shape, self.ndim = path, dtype, shape, len(shape)
        self._first_byte = first_byte
        self._item_bytes = dtype.itemsize * int(np.prod(shape[1:]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> npt.NDArray[Any]:
        if not isinstance(chosen, slice) or chosen.step not in (None, 1):
            found: npt.NDArray[Any] = np.asarray(self)[chosen]
            return found
        start, stop, _ = chosen.indices(len(self))
        first, last = (self._first_byte + of * self._item_bytes for of in (start, max(start, stop)))
        data = read_range(self.path, first, last)
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        num = int(np.prod(self.shape))
        whole = map_numbers(self.path, self.dtype, first_byte=self._first_byte, num=num)
        return np.array(whole.reshape(self.shape), dtype=dtype, copy=copy)

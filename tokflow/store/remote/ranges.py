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
from tokflow.store.remote.cached_files import (
    fetched,
    key_of,
    listed_entry,
    not_fetched,
    raise_if_removed,
)
from tokflow.store.remote.places import Place

SMALL_BYTES = 1 << 24
"""A file of so many bytes comes whole: one request."""

READ_AHEAD = 1 << 16
"""Bytes that come with a header, or a footer."""


def is_far(place: Place, path: Path) -> bool:
    """Return whether a file is worth being read in ranges: a large one at a URL, not here."""
    return not path.exists() and _size_of(place, path) > SMALL_BYTES


def _size_of(place: Place, path: Path) -> int:
    """Return the size of a file at a URL; 0 of one that no manifest lists."""
    folder = place.output_folder(path)
    entry = None if folder is None else listed_entry(place, folder, path)
    return 0 if entry is None else entry.num_bytes


def read_range(place: Place, path: Path, start: int, stop: int) -> bytes:
    """Return the bytes of a file between two positions, which it has; of one that is at a URL, and
    not here, by a request.

    Raises: as `fetched`.
    """
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)
    folder = place.output_folder(path)
    assert folder is not None  # as `is_far` has found
    with raise_if_removed(place, folder):
        if (entry := listed_entry(place, folder, path)) is None:
            raise FileNotFoundError(path)
        data = place.objects.read(key_of(place, folder, path), start, stop)
    if data is None or len(data) < stop - start:
        raise not_fetched(place, folder, path, entry, "none, or less")
    return data


def open_lazily(place: Place, path: Path) -> BinaryIO:
    """Return a file, open for a reader of little of it, such as a header, or a footer and a row
    group."""
    if is_far(place, path):
        return cast(BinaryIO, io.BufferedReader(_Ranges(place, path), READ_AHEAD))
    return fetched(place, path).open("rb")


class _Ranges(PositionedReader):
    """A file at a URL whose bytes come when they are read."""

    def __init__(self, place: Place, path: Path) -> None:
        super().__init__(_size_of(place, path))
        self._place, self._path = place, path

    def readinto(self, buffer: Any) -> int:
        """Read bytes into `buffer`, as many as it takes or the file has."""
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self._num_bytes)
        if stop <= self._position:
            return 0
        data = read_range(self._place, self._path, self._position, stop)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class LazyNumbers:
    """Numbers, or rows of numbers, of a large file at a URL: a slice is a request for its bytes;
    for anything else the file is fetched."""

    def __init__(
        self,
        place: Place,
        path: Path,
        dtype: np.dtype[Any],
        first_byte: int,
        shape: tuple[int, ...] | None,
    ) -> None:
        shape = shape or ((_size_of(place, path) - first_byte) // dtype.itemsize,)
        self.path, self.dtype, self.shape, self.ndim = path, dtype, shape, len(shape)
        self._place, self._first_byte = place, first_byte
        self._item_bytes = dtype.itemsize * int(np.prod(shape[1:]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> npt.NDArray[Any]:
        if not isinstance(chosen, slice) or chosen.step not in (None, 1):
            found: npt.NDArray[Any] = np.asarray(self)[chosen]
            return found
        start, stop, _ = chosen.indices(len(self))
        first, last = (self._first_byte + of * self._item_bytes for of in (start, max(start, stop)))
        data = read_range(self._place, self.path, first, last)
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        num = int(np.prod(self.shape))
        path = fetched(self._place, self.path)
        whole = map_numbers(path, self.dtype, first_byte=self._first_byte, num=num)
        return np.array(whole.reshape(self.shape), dtype=dtype, copy=copy)

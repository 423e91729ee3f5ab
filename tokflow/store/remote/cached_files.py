"""Files of outputs at a URL: on this disk when they are opened, each fetched by one process; of a
large one, of which little is read, ranges come by a request for each, and are not kept.

Ranges are not compared with the checksum of the file, which tells of the whole alone.
"""

import fcntl
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from tokflow.errors import CorruptOutputError, MissingOutputError
from tokflow.store.atomic import naming
from tokflow.store.listed_files import Stamp, arrived
from tokflow.store.manifest import (
    MANIFEST_NAME,
    RUN_NAME,
    FileEntry,
    checksum,
    damaged,
    is_complete,
    read_manifest,
)
from tokflow.store.positioned import PositionedReader
from tokflow.store.remote.cache_limit import note_bytes, note_use
from tokflow.store.remote.mirror import note_damage, refresh_output
from tokflow.store.remote.objects import for_each
from tokflow.store.remote.places import Place
from tokflow.store.tables import map_numbers

TRIES = 2
"""Fetches of a file whose bytes are not its manifest's: they may be damaged on the way."""


def fetched(place: Place, path: Path) -> Path:
    """Return `path`, of a file of an output, which is on this disk when this returns.

    A path that no manifest lists is returned as it is. Of several processes that want the same file
    one fetches it. What arrives is compared with the manifest before it takes its name.

    Raises: MissingOutputError where the output is not at the URL, or not the one that its manifest
    here is of; CorruptOutputError where what is there is not what the manifest says.
    """
    if (folder := place.output_folder(path)) is None:
        return path
    note_use(folder)
    if path.exists():
        return path
    entry = listed_entry(place, folder, path)
    if entry is not None or path == folder / RUN_NAME:
        with raise_if_removed(place, folder), naming(path, part_path(path)), alone(path) as part:
            if part is not None:
                _fetch(place, folder, path, part, entry)
    return path


@contextmanager
def raise_if_removed(place: Place, folder: Path) -> Iterator[None]:
    """Let the block, which fetches of an output, raise MissingOutputError where another thread or
    process finds meanwhile that the output is gone, and removes its folder."""
    try:
        yield
    except MissingOutputError:
        raise
    except FileNotFoundError:
        refresh_output(place, folder)  # for the folder may have been made once more
        raise _removed(place, folder) from None


def listed_entry(place: Place, folder: Path, path: Path) -> FileEntry | None:
    """Return what the manifest of the output in a folder says of a file; None where it lists no
    such file.

    Raises: as `read_manifest`.
    """
    if not is_complete(folder):
        refresh_output(place, folder)
    try:
        files = _listed_files(folder, Stamp.of((folder / MANIFEST_NAME).stat()))
    except FileNotFoundError:
        files = read_manifest(folder).files  # which says so
    return files.get(path.relative_to(folder).as_posix())


@lru_cache(64)
def _listed_files(folder: Path, stamp: Stamp) -> Mapping[str, FileEntry]:
    """Return the files that a manifest lists, which is read once for all of them."""
    return read_manifest(folder).files


def fetch_all(place: Place, paths: Iterable[Path]) -> None:
    """Fetch files, several at once; see `fetched`."""
    paths = [*paths]
    away = [path for path in paths if not path.exists()]
    for path in {*paths} - {*away}:
        fetched(place, path)  # which notes the use alone
    for_each(partial(fetched, place), away)


def _fetch(place: Place, folder: Path, path: Path, part: Path, entry: FileEntry | None) -> None:
    """Fetch a file of an output into `part`, which then takes its name."""
    key = key_of(place, folder, path)
    found = ""
    for _ in range(TRIES):
        if entry is None:
            part.write_bytes(place.objects.read(key) or b"")
        elif not place.objects.get_file(key, part, entry.num_bytes):
            found = "none"
            break
        found = "other bytes"
        if entry is None or checksum(part) == entry:
            part.replace(path)
            if entry is not None:
                arrived[str(path)] = entry, Stamp.of(path.stat())
                note_bytes(entry.num_bytes)
            return
    part.unlink(missing_ok=True)
    if entry is not None:
        raise not_fetched(place, folder, path, entry, found)


def key_of(place: Place, folder: Path, path: Path) -> str:
    """Return the key of a file of the output in a folder."""
    return place.data_prefix(folder) + path.relative_to(folder).as_posix()


def not_fetched(
    place: Place, folder: Path, path: Path, entry: FileEntry, found: str
) -> CorruptOutputError | MissingOutputError:
    """Return the error of a file that could not be fetched: damaged, or its output was removed."""
    known = _manifest(folder)
    refresh_output(place, folder)
    with suppress(FileNotFoundError):
        if _manifest(folder) == known:
            note_damage(folder)
            expected = f"{entry.num_bytes:,} bytes with sha256 {entry.sha256[:16]}…"
            run = f"tokflow run {place.key(folder).partition('/')[0]} --recheck"
            return damaged(place.url_of(path), expected, found, run=run)
    return _removed(place, folder)


def _removed(place: Place, folder: Path) -> MissingOutputError:
    return MissingOutputError(
        where=place.url_of(folder),
        expected="the output that was there",
        found="another, or none: it was removed, or made again, since this process looked",
        remedy="run the same command again",
    )


def _manifest(folder: Path) -> bytes:
    return (folder / MANIFEST_NAME).read_bytes()


def part_path(path: Path) -> Path:
    """Return the name that a file has until all of it is here."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def alone(path: Path) -> Iterator[Path | None]:
    """Yield the path that a file has until all of it is here, for this thread alone of all
    processes; None where another has fetched it meanwhile.

    The lock of a killed process is free; the next one begins again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(path)
    while True:
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():
                part.unlink(missing_ok=True)
                yield None
                return
            if _has_inode(part, os.fstat(file.fileno()).st_ino):
                yield part
                return


def _has_inode(path: Path, inode: int) -> bool:
    """Return whether a file that was waited for still has its name."""
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False


def drop_cached(path: Path) -> None:
    """Remove the copy of a file, which is not as it should be, from this disk. One that another
    thread or process fetches now stays."""
    path.unlink(missing_ok=True)
    if part_path(path).exists():
        with alone(path) as part:
            if part is not None:
                part.unlink()


SMALL_BYTES = 1 << 24
"""Size up to which a file is fetched whole, by one request."""

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

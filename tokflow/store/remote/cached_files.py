"""Files of outputs at a URL: on this disk when they are opened, each fetched by one process; of a
large one, of which little is read, ranges come by a request for each, and are not kept.

Ranges are not compared with the checksum of the file, which tells of the whole alone.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.errors import CorruptOutputError, MissingOutputError
from tokflow.store import manifest
from tokflow.store.atomic import naming
from tokflow.store.integrity import Stored
from tokflow.store.listed_files import Stamp, arrived
from tokflow.store.remote import Place
from tokflow.store.remote.cache import note_bytes, note_damage, note_use, refresh_output
from tokflow.store.streams import PositionedReader
from tokflow.store.tables import map_numbers

TRIES = 2
"""Fetches of a file whose bytes are not its manifest's: they may be damaged on the way."""


def fetched(place: Place, output: Stored, name: str) -> Path:
    """Return the path of a file of an output, which is on this disk when this returns.

    One that the manifest does not list is not looked for. Of several processes that want the same
    file one fetches it. What arrives is compared with the manifest before it takes its name.

    Raises: MissingOutputError where the output is not at the URL, or not the one that its manifest
    here is of; CorruptOutputError where what is there is not what the manifest says.
    """
    path = output.folder / name
    note_use(output.folder)
    if path.exists() or (entry := output.manifest.files.get(name)) is None:
        return path
    with raise_if_removed(place, output), naming(path, part_path(path)), alone(path) as part:
        if part is not None:
            _fetch(place, output, name, part, entry)
    return path


@contextmanager
def raise_if_removed(place: Place, output: Stored) -> Iterator[None]:
    """Let the block, which fetches of an output, raise MissingOutputError where the output is gone,
    also where another thread or process finds that meanwhile, and removes its folder."""
    try:
        if not manifest.is_complete(output.folder):  # on this machine
            refresh_output(place, output.folder)
        yield
    except MissingOutputError:
        raise
    except FileNotFoundError:
        refresh_output(place, output.folder)  # for the folder may have been made once more
        raise _removed(place, output) from None


def fetch_run(place: Place, folder: Path) -> None:
    """Fetch what is known of the run that made an output; it may be damaged, or not there."""
    path = folder / manifest.RUN_NAME
    if path.exists():
        return
    with suppress(FileNotFoundError):
        data = place.objects.read(place.data_prefix(folder) + manifest.RUN_NAME) or b""
        with alone(path) as part:
            if part is not None:
                part.write_bytes(data)
                part.replace(path)


def _fetch(place: Place, output: Stored, name: str, part: Path, entry: manifest.FileEntry) -> None:
    """Fetch a file of an output into `part`, which then takes its name."""
    path, found = output.folder / name, "other bytes"
    for _ in range(TRIES):
        if not place.objects.get_file(key_of(place, output.folder, path), part, entry.num_bytes):
            found = "none"
            break
        if manifest.checksum(part) == entry:
            part.replace(path)
            arrived[str(path)] = entry, Stamp.of(path.stat())
            note_bytes(entry.num_bytes)
            return
    part.unlink(missing_ok=True)
    raise not_fetched(place, output, name, found)


def key_of(place: Place, folder: Path, path: Path) -> str:
    """Return the key of a file of the output in a folder."""
    return place.data_prefix(folder) + path.relative_to(folder).as_posix()


def not_fetched(
    place: Place, output: Stored, name: str, found: str
) -> CorruptOutputError | MissingOutputError:
    """Return the error of a file that could not be fetched: damaged, or its output was removed."""
    folder, entry = output.folder, output.manifest.files[name]
    refresh_output(place, folder)
    with suppress(MissingOutputError):
        if manifest.read_manifest(folder) == output.manifest:
            note_damage(folder)
            expected = f"{entry.num_bytes:,} bytes with sha256 {entry.sha256[:16]}…"
            run = f"tokflow run {place.key(folder).partition('/')[0]} --recheck"
            return manifest.damaged(place.url_of(folder / name), expected, found, run=run)
    return _removed(place, output)


def _removed(place: Place, output: Stored) -> MissingOutputError:
    return MissingOutputError(
        where=place.url_of(output.folder),
        expected="the output that was there",
        found="another, or none: it was removed, or made again, since this process looked",
        remedy="run the same command again",
    )


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
        is_still_there = False
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():
                part.unlink(missing_ok=True)
                yield None
                return
            with suppress(FileNotFoundError):
                is_still_there = part.stat().st_ino == os.fstat(file.fileno()).st_ino
            if is_still_there:
                yield part
                return


SMALL_BYTES = 1 << 24
"""Size up to which a file is fetched whole, by one request."""

READ_AHEAD = 1 << 16
"""Bytes that come with a header, or a footer."""


def read_range(place: Place, output: Stored, name: str, start: int, stop: int) -> bytes:
    """Return the bytes of a file between two positions, which it has; of one that is at a URL, and
    not here, by a request.

    Raises: as `fetched`.
    """
    path = output.folder / name
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)
    with raise_if_removed(place, output):
        data = place.objects.read(key_of(place, output.folder, path), start, stop)
    if data is None or len(data) < stop - start:
        raise not_fetched(place, output, name, "none, or less")
    return data


class Ranges(PositionedReader):
    """A file at a URL whose bytes come when they are read."""

    def __init__(self, place: Place, output: Stored, name: str) -> None:
        super().__init__(output.manifest.files[name].num_bytes)
        self._read = partial(read_range, place, output, name)

    def readinto(self, buffer: Any) -> int:
        """Read bytes into `buffer`, as many as it takes or the file has."""
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self._num_bytes)
        if stop <= self._position:
            return 0
        data = self._read(self._position, stop)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class LazyNumbers:
    """Numbers, or rows of numbers, of a large file at a URL: a slice is a request for its bytes;
    for anything else the file is fetched."""

    def __init__(
        self,
        place: Place,
        output: Stored,
        name: str,
        dtype: np.dtype[Any],
        first_byte: int,
        shape: tuple[int, ...] | None,
    ) -> None:
        num_bytes = output.manifest.files[name].num_bytes - first_byte
        shape = shape or (num_bytes // dtype.itemsize,)
        self.dtype, self.shape, self.ndim = dtype, shape, len(shape)
        self._file, self._first_byte = (place, output, name), first_byte
        self._item_bytes = dtype.itemsize * int(np.prod(shape[1:]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> npt.NDArray[Any]:
        if not isinstance(chosen, slice) or chosen.step not in (None, 1):
            found: npt.NDArray[Any] = np.asarray(self)[chosen]
            return found
        start, stop, _ = chosen.indices(len(self))
        first, last = (self._first_byte + of * self._item_bytes for of in (start, max(start, stop)))
        data = read_range(*self._file, first, last)
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        num = int(np.prod(self.shape))
        path = fetched(*self._file)
        whole = map_numbers(path, self.dtype, first_byte=self._first_byte, num=num)
        return np.array(whole.reshape(self.shape), dtype=dtype, copy=copy)

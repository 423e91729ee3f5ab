"""The sha256 of raw files on this disk, made while they are read, and kept by path and stamp."""

import hashlib
import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path, PosixPath
from threading import Lock
from typing import Any

from tokflow.errors import ChangedFileError, RawFileError
from tokflow.store.listed_files import Stamp
from tokflow.store.manifest import plain_json
from tokflow.store.remembered import LineFile

Progress = Callable[[int, int | None], None]
"""Called with the bytes done so far and all there are to do, or None if that is not known."""

CACHE_NAME = "hashes.jsonl"

_BLOCK_BYTES = 4 * 2**20


class HashCache:
    """Checksums by path and stamp, in one file of a store that several processes may use at once.

    A line of JSON for each: path, stamp, sha256. In another process it is empty until `refresh`.
    """

    def __init__(self, store: Path, *, is_read: bool = True) -> None:
        self._lines = LineFile(store / CACHE_NAME)
        self._known: dict[str, tuple[Stamp, str]] = {}
        if is_read:
            self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(HashCache, is_read=False), (self._lines.path.parent,)

    def refresh(self) -> None:
        """Read the lines that were added since the last time."""
        for line in self._lines.read():
            with suppress(ValueError, TypeError, RecursionError):
                path, *stamp, sha256 = plain_json(line)
                if len(sha256) == 64:
                    self._known[path] = Stamp(*stamp), sha256

    def find(self, path: Path, stamp: Stamp) -> str | None:
        """Return the checksum the file had when it had this stamp, or None."""
        known, sha256 = self._known.get(str(path.absolute()), (None, None))
        return sha256 if known == stamp else None

    def keep(self, path: Path, stamp: Stamp, sha256: str) -> None:
        """Remember the checksum of a file with this stamp."""
        name = str(path.absolute())
        if self._known.get(name) != (stamp, sha256):
            self._known[name] = stamp, sha256
            self._lines.add(json.dumps([name, *astuple(stamp), sha256]).encode())


class HashedFile(PosixPath):
    """The path of a raw file on this disk that is hashed while it is read.

    Bytes count that a reader asks for in order from the first, however often it opens the file;
    the others are read when the checksum is asked for. A path made from it is an ordinary one.
    """

    stamp: Stamp | None = None
    """Size, times and inode, which all that is read must have."""
    cache: HashCache | None = None
    """Place where the checksum is kept, and found if another process has read the file."""
    _hashed: tuple[Any, int]
    """The digest of the first bytes and their number: read and replaced as one, for threads read
    while another asks for the checksum."""
    _sha256: str
    _lock: Lock

    @classmethod
    def of(cls, path: Path, stamp: Stamp, cache: HashCache) -> "HashedFile":
        """Return the path of a file of which nothing was read yet."""
        file = cls(os.fspath(path))
        file.stamp, file.cache = stamp, cache
        file._hashed = hashlib.sha256(), 0
        file._sha256, file._lock = "", Lock()
        return file

    def __reduce__(self) -> tuple[Any, ...]:
        plain = Path(os.fspath(self))
        is_plain = self.stamp is None
        return (Path, (plain,)) if is_plain else (HashedFile.of, (plain, self.stamp, self.cache))

    def open(self, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        """Open the file; what is read of its bytes is hashed."""
        if self.stamp is None or mode != "rb":
            return super().open(mode, buffering, *more, **options)
        file = _HashingReader(self)
        return file if buffering == 0 else io.BufferedReader(file)

    def add(self, data: memoryview, start: int) -> None:
        """Hash what was read from a position on, as far as it is next."""
        digest, num_bytes = self._hashed
        first = num_bytes - start
        if 0 <= first < len(data):
            digest = digest.copy()
            digest.update(data[first:])
            self._hashed = digest, start + len(data)

    @property
    def is_hashed(self) -> bool:
        """True if the checksum is known."""
        return bool(self._sha256)

    def sha256(self) -> str:
        """Return the checksum; what was not read is read, unless another process has.

        Raises: RawFileError if the file cannot be read, and if it changed meanwhile.
        """
        with self._lock:
            cache, stamp = self.cache, self.stamp
            if self._sha256 or stamp is None or cache is None:
                return self._sha256
            digest, num_bytes = self._hashed
            if num_bytes < stamp.num_bytes:
                cache.refresh()
                self._sha256 = cache.find(self, stamp) or ""
            if not self._sha256:
                digest = digest.copy()
                num_bytes = _hash_on(self, digest, num_bytes, stamp)
                sha256, now = digest.hexdigest(), stamp_of(self)
                if now == stamp and num_bytes == stamp.num_bytes:
                    cache.keep(self, stamp, sha256)
                elif hash_file(self)[1] != sha256:  # not ctime alone, as by chmod
                    raise changed_error(self, stamp, now)
                self._hashed, self._sha256 = (digest, num_bytes), sha256
        return self._sha256


class _HashingReader(io.FileIO):
    """An open file whose bytes go to its path, too."""

    def __init__(self, path: HashedFile) -> None:
        super().__init__(os.fspath(path), "rb")
        self._of = path

    def read(self, size: int | None = -1, /) -> bytes:
        start, data = self.tell(), super().read(-1 if size is None else size)
        self._of.add(memoryview(data), start)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        start, num_bytes = self.tell(), super().readinto(buffer)
        self._of.add(memoryview(buffer).cast("B")[:num_bytes], start)
        return num_bytes


def hash_file(path: Path, *, progress: Progress | None = None) -> tuple[Stamp, str]:
    """Return the stamp of a file and the sha256 of its content, reading all of it.

    Raises: RawFileError if it cannot be read, and if it changes meanwhile.
    """
    stamp, digest = stamp_of(path), hashlib.sha256()
    num_bytes = _hash_on(path, digest, 0, stamp, progress)
    if (now := stamp_of(path)) != stamp or num_bytes != stamp.num_bytes:
        raise changed_error(path, stamp, now)
    return stamp, digest.hexdigest()


def _hash_on(
    path: Path, digest: Any, start: int, stamp: Stamp, progress: Progress | None = None
) -> int:
    """Hash a file from `start` on; return where it ends. Raises: RawFileError."""
    try:
        with io.FileIO(os.fspath(path)) as file:
            file.seek(start)
            block = memoryview(bytearray(min(_BLOCK_BYTES, stamp.num_bytes + 1)))
            while size := file.readinto(block):
                digest.update(block[:size])
                start += size
                if progress is not None:
                    progress(start, stamp.num_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error
    return start


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of the file as it is now. Raises: RawFileError if it cannot be read."""
    try:
        return Stamp.of(path.stat())
    except OSError as error:
        raise _unreadable(path, error) from error


def changed_error(path: Path, before: Stamp, after: Stamp) -> ChangedFileError:
    """Return the error for a raw file that somebody changes while it is in use."""
    found = f"another version of the same {after.num_bytes:,} bytes"
    if before.num_bytes != after.num_bytes:
        found = f"{before.num_bytes:,} bytes before and {after.num_bytes:,} after"
    expected = "a raw file that stays as it is while it is read"
    remedy = "wait until whatever writes it is done, then run again"
    return ChangedFileError(
        path=path, stamp=before, where=path, expected=expected, found=found, remedy=remedy
    )


def _unreadable(path: Path, error: OSError) -> RawFileError:
    found, remedy = error.strerror or type(error).__name__, "make it readable"
    if isinstance(error, FileNotFoundError):
        found, remedy = "no such file", "restore it, or list the raw files again"
    return RawFileError(where=path, expected="a raw file", found=found, remedy=remedy)

"""Files that are hashed and put on disk while they are written; ranges written to where they are in
a file, and remote files that are read like local ones; Zstandard."""

import hashlib
import io
import os
import shutil
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from tokflow.store.manifest import FileEntry

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd  # Python 3.14's module for older ones

HASH_BYTES = 4_000_000
"""Handed to the thread that hashes at one go; less is hashed where the file ends."""

COPY_BYTES = 2**28
"""Copied by one call, which cannot be interrupted."""

SYNC_BYTES = 16_000_000
"""Put on disk at one go at least, while more is written; a slow disk is not waited for."""


def copy_rest(source: BinaryIO, file: BinaryIO) -> None:
    """Copy what is behind the position of a file to that of another.

    The kernel copies, without any byte in this process, and on file systems that share blocks
    between files in no time; what it does not copy, as on some file systems, this process does.
    """
    # Suppressed: the error of a kernel that does not copy between the two.
    with suppress(AttributeError, OSError):
        while os.copy_file_range(source.fileno(), file.fileno(), COPY_BYTES):
            pass
    shutil.copyfileobj(source, file)


class HashedWriter(AbstractContextManager["HashedWriter"]):
    """A new file, whose size and sha256 are known once it is closed.

    Hashing and syncing leave the interpreter free, and have a thread each beside the writer's:
    500 MB are there in 0.4 s, where writing, then hashing and then syncing takes 0.6, if there is
    a core to spare; if not, in no less. What is given to `write` must not be changed afterwards;
    up to 8 MB of it are held, or what is given at once and the time before.
    """

    def __init__(self, path: Path) -> None:
        self._closing = ExitStack()
        self._file = self._closing.enter_context(path.open("wb"))
        self._sha256 = hashlib.sha256()
        self._gathered: list[memoryview] = []
        self._num_gathered = self._num_unsynced = self._num_bytes = 0
        self._hashing: Future[None] | None = None
        self._syncing: Future[None] | None = None

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """The threads, which a small file never needs."""
        return self._closing.enter_context(
            ThreadPoolExecutor(2, thread_name_prefix="tokflow-written")
        )

    def write(self, data: Any) -> int:
        """Write all of something that has bytes; return how many."""
        view = memoryview(data)
        num_bytes = view.nbytes
        if num_bytes == 0:
            return 0
        self._file.write(view)
        self._gathered.append(view.cast("B"))
        self._num_bytes += num_bytes
        self._num_gathered += num_bytes
        self._num_unsynced += num_bytes
        if self._num_gathered >= HASH_BYTES:
            if self._hashing is not None:
                self._hashing.result()
            self._hashing = self._threads.submit(self._hash, self._gathered)
            self._gathered, self._num_gathered = [], 0
        if self._num_unsynced >= SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            self._num_unsynced = 0
            self._file.flush()
            self._syncing = self._threads.submit(os.fsync, self._file.fileno())
        return num_bytes

    def copy(self, path: Path) -> FileEntry:
        """Write all of a file, which the system copies; return size and sha256 of all so far: those
        of no file where the source grew or shrank meanwhile."""
        self.flush()
        with path.open("rb", buffering=0) as source:
            copy_rest(source, self._file)
            self._file.flush()
            if self._hashing is not None:
                self._hashing.result()
            self._hash(self._gathered)
            self._gathered, self._num_gathered = [], 0
            source.seek(0)
            while data := source.read(HASH_BYTES):
                self._hash([memoryview(data)])
        self._num_bytes = os.fstat(self._file.fileno()).st_size
        return self.entry()

    def _hash(self, views: Iterable[memoryview]) -> None:
        for view in views:
            self._sha256.update(view)

    def flush(self) -> None:
        """Flush to the operating system."""
        self._file.flush()

    @property
    def closed(self) -> bool:
        """True once nothing more can be written; pyarrow asks."""
        return self._file.closed

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._num_bytes

    def __exit__(self, *error: object) -> None:
        """Write and hash what is left. Raises: what hashing or syncing raised."""
        with self._closing:
            for begun in (self._hashing, self._syncing):
                if begun is not None:
                    begun.result()
            self._hash(self._gathered)

    def entry(self) -> FileEntry:
        """Return the size and sha256 of the file, which is closed or was just copied."""
        return FileEntry(num_bytes=self._num_bytes, sha256=self._sha256.hexdigest())


class PositionedReader(io.RawIOBase):
    """A file of a known size, with the position that reading has come to; a subclass has
    `readinto`, which takes bytes from `_position` on and moves it."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be read from anywhere."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, which fetches nothing."""
        of = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}
        self._position = max(0, of[whence] + offset)
        return self._position


def write_range(file: int, data: bytes, start: int) -> int:
    """Write bytes to where they are in an open file; return how many they are.

    A disk that becomes full takes the first of them, and raises when it is given the rest.
    """
    num_written = 0
    while num_written < len(data):
        num_written += os.pwrite(file, data[num_written:], start + num_written)
    return num_written

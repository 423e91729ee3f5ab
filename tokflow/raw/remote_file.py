"""A raw file that is not on this disk, as one version of it that is read as it arrives.

    raw/<key>/.blocks-<fingerprint[:16]>/<file name>/    the blocks of it that are kept

What follows is asked for ahead, so sequential reading never waits for a network that is as fast,
and reading here and there fetches little.
"""

import hashlib
import logging
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path, PosixPath
from typing import Any, ClassVar

from xxhash import xxh3_64_hexdigest

from tokflow.errors import RawFileError
from tokflow.formatting import redact
from tokflow.raw.remote_version import NoRangesError, RemoteVersion, TransientError, read_all
from tokflow.store.streams import PositionedReader, write_range

GAP_BYTES = 2**18
"""Bytes skipped at most by a reader that still counts as reading on."""
SMALL_BYTES = 2**20
"""A file that is no larger is fetched by one request."""
FIRST_BYTES = 2**16
"""Bytes of the first request of a run through the file; each that follows asks for GROWTH times as
many."""
GROWTH = 4
PIECE_BYTES = 2**23
"""Bytes of one request at most."""
AHEAD = 3
"""Requests under way before their bytes are needed: a network that is as fast as the reader is
never waited for."""
NUM_RUNS = 4
"""Places of a file that are read in turns, as the columns of parquet are."""

_LINE = re.compile(r"(\d+) (\d+) ([0-9a-f]{16})")

_log = logging.getLogger(__name__)


class Blocks:
    """The blocks of one version of a remote file that are on this disk, in a folder that need not
    exist.

        <folder>/content    the file; its bytes count only in blocks that have a line
        <folder>/.blocks    a line for each block of 1 MiB: number, bytes, xxh3

    A block is compared with its line whenever it is used, so a killed process leaves nothing wrong,
    nor does a machine that loses what it had not written yet. Several processes may add blocks at
    once: all write equal bytes to equal places.
    """

    block_bytes: ClassVar[int] = 2**20

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.fspath(folder))
        self.path = self._folder / "content"
        self._index = self._folder / ".blocks"
        self._known: dict[int, tuple[int, str]] = {}
        with suppress(FileNotFoundError):
            for found in map(_LINE.fullmatch, self._index.read_text().splitlines()):
                if found is not None:
                    self._known[int(found[1])] = int(found[2]), found[3]

    def find(self, number: int) -> bytes:
        """Return the bytes of a block that are kept and undamaged."""
        (num_bytes, digest), data = self._known.get(number, (0, "")), b""
        with suppress(FileNotFoundError), self.path.open("rb", buffering=0) as file:
            file.seek(number * self.block_bytes)
            data = file.read(num_bytes)
        if num_bytes == 0 or xxh3_64_hexdigest(data) == digest:
            return data
        if self.path.exists():  # or it was garbage to another dataset of the same name
            _log.warning("%s: damaged, so these bytes are fetched again", self.path)
        self._known.pop(number, None)
        return b""

    def fetched(
        self, fetch: Callable[[int, int], bytes], start: int, stop: int, num_bytes: int
    ) -> bytes:
        """Return the bytes between two positions of a file of `num_bytes`; blocks that are not
        there come from `fetch`, and are kept.

        Raises: RawFileError if the disk does not take them.
        """
        size = self.block_bytes
        numbers = range(start // size, (stop - 1) // size + 1)
        found = {number: self.find(number) for number in numbers}
        lacking = [of for of in numbers if len(found[of]) < min(size, num_bytes - of * size)]
        if lacking:
            first = lacking[0] * size
            data = fetch(first, min((lacking[-1] + 1) * size, num_bytes))
            for number in range(lacking[0], lacking[-1] + 1):
                found[number] = data[number * size - first :][:size]
                self.keep(number, found[number])
        first = numbers[0] * size
        return b"".join(found.values())[start - first : stop - first]

    def keep(self, number: int, data: bytes, *, room: int = 0) -> None:
        """Add a block. Raises: RawFileError if the disk does not take it, which names the `room`
        for all of the file."""
        digest = xxh3_64_hexdigest(data)
        try:
            self.make(number * self.block_bytes, data)
            with self._index.open("ab", buffering=0) as file:
                # One call; its first line end closes a line that was cut off.
                file.write(f"\n{number} {len(data)} {digest}\n".encode())
        except OSError as error:
            raise RawFileError(
                where=self.path,
                expected=f"room for {max(room, len(data)):,} bytes",
                found=error.strerror or str(error),
                remedy="free disk space and run again; the bytes that arrived are kept",
            ) from error
        self._known[number] = len(data), digest

    def make(self, start: int, data: bytes) -> None:
        """Write bytes to where they are in the file, which is made if it is not there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT, mode=0o666)
        with os.fdopen(file, "wb", buffering=0):
            write_range(file, data, start)

    def move_to(self, path: Path, num_bytes: int) -> None:
        """Give the complete file its place, and remove the blocks."""
        self.make(0, b"")  # for one that is empty
        os.truncate(self.path, num_bytes)
        self.path.rename(path)
        self.clear()

    def clear(self) -> None:
        """Remove all blocks."""
        self._index.unlink(missing_ok=True)  # first: its lines are never of other bytes
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):
            self._folder.parent.rmdir()
        self._known = {}


class RemoteFile(PosixPath):
    """The path of a raw file that is fetched as it is read: a folder of the blocks that were.

    A path and no file, for readers take paths, open them, several times, and name them in errors,
    and for it goes to worker processes. A path made from it is an ordinary one.
    """

    version: RemoteVersion | None = None
    read_sha256: str | None = None
    """The sha256 of the content, once all of it was read in order."""
    begun: "Future[bytes] | None" = None
    """All bytes of a small file, if they are under way."""

    @classmethod
    def of(cls, path: Path, version: RemoteVersion) -> "RemoteFile":
        """Return the path of a version whose blocks are in the folder `path`."""
        file = cls(path)
        file.version = version
        return file

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFile.of, (Path(os.fspath(self)), self.version)

    def __fspath__(self) -> str:
        return super().__str__()

    def __str__(self) -> str:
        return os.fspath(self) if self.version is None else redact(self.version.url)

    def __hash__(self) -> int:
        return hash(Path(os.fspath(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and Path(os.fspath(self)) == Path(os.fspath(other))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the size of the file, as one of this disk that nobody writes."""
        if self.version is None:
            return super().stat(follow_symlinks=follow_symlinks)
        mode = stat.S_IFREG | 0o444
        return os.stat_result((mode, 0, 0, 1, 0, 0, self.version.num_bytes, 0, 0, 0))

    def open(self, *mode: Any, **options: Any) -> Any:
        """Open the file for reading its bytes, whatever the mode."""
        version = self.version
        return super().open(*mode, **options) if version is None else RemoteReader(self, version)

    def read_ahead(self) -> None:
        """Let a small file be fetched, since it is opened soon."""
        version = self.version
        if version is not None and not version.is_kept and 0 < version.num_bytes <= SMALL_BYTES:
            self.begun = _fetch_soon(version.fetch_range, 0, version.num_bytes)


@lru_cache(maxsize=1)
def _threads(_: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(16, thread_name_prefix="raw-file")


def _fetch_soon(fetch: Callable[[int, int], bytes], start: int, stop: int) -> "Future[bytes]":
    """Fetch a range, of one byte at least, in a thread of this process."""
    return _threads(os.getpid()).submit(fetch, start, stop)


class _Run:
    """Consecutive pieces of a file, of which the next are under way once the first is read on."""

    def __init__(self, start: int, fetch: Callable[[int, int], bytes], ahead: int) -> None:
        self.begin = self.stop = start
        """The first byte that was asked for, and the byte after the last."""
        self._fetch = fetch
        self._ahead = ahead
        self._next_bytes = FIRST_BYTES
        self._pieces: deque[tuple[int, int, Future[bytes]]] = deque()

    def is_near(self, position: int) -> bool:
        """Return whether a position is held, or so near that what is before it is fetched, too."""
        start = self._pieces[0][0] if self._pieces else self.stop
        return start <= position <= self.stop + GAP_BYTES

    def take(self, stop: int, piece: "Future[bytes]") -> None:
        """Hold what follows, up to `stop`, which was asked for."""
        self._pieces.append((self.stop, stop, piece))
        self.stop = stop

    def read(self, position: int, size: int, limit: int, num_bytes: int) -> memoryview:
        """Return at least one and at most `size` bytes from a position on; ask for what follows,
        up to `limit`."""
        while position >= self.stop:
            self._go_on(max(size, position - self.stop), num_bytes)
        while len(self._pieces) > 2 and self._pieces[1][1] <= position:
            self._pieces.popleft()  # all but the piece before this one
        if position > self.begin:
            while sum(of[0] > position for of in self._pieces) < self._ahead and self.stop < limit:
                self._go_on(1, limit)
        start, _, piece = next(of for of in self._pieces if of[0] <= position < of[1])
        return memoryview(piece.result())[position - start : position - start + size]

    def _go_on(self, least: int, limit: int) -> None:
        stop = min(self.stop + min(max(self._next_bytes, least), PIECE_BYTES), limit)
        self._next_bytes = min(GROWTH * self._next_bytes, PIECE_BYTES)
        self.take(stop, _fetch_soon(self._fetch, self.stop, stop))

    def close(self) -> None:
        """Let go of what is not under way yet."""
        for _, _, piece in self._pieces:
            piece.cancel()


class RemoteReader(PositionedReader):
    """Reads one version of a file. Each read returns all that was asked for, up to its end.

    Raises: as `RemoteVersion.fetch_range`; FetchError if the bytes of a file of which nothing is
    kept, and that was read from its first to its last, or came whole, are not those promised.
    """

    def __init__(self, file: RemoteFile, version: RemoteVersion) -> None:
        super().__init__(version.num_bytes)
        self._file = file
        self._version = version
        self._blocks = Blocks(file)
        self._fetch: Callable[[int, int], bytes] = version.fetch_range
        if version.is_kept:
            self._fetch = partial(self._blocks.fetched, self._fetch, num_bytes=version.num_bytes)
        self._answer: _OneAnswer | None = None
        names = ("sha256",) if version.promised_md5 is None else ("sha256", "md5")
        self._digests = [hashlib.new(name, usedforsecurity=False) for name in names]
        self._num_digested = -1 if version.is_kept else 0
        self._runs: list[_Run] = []
        """The one that was read last is the last."""
        self.limit = version.num_bytes
        """Nothing from here on is fetched before it is asked for."""

    def readinto(self, buffer: Any) -> int:
        """Read bytes into `buffer`, as many as it takes or the file has."""
        view, done = memoryview(buffer).cast("B"), 0
        stop = min(self._position + len(view), self._num_bytes)
        if self._num_bytes == 0:
            self._digest(b"", 0)
        while self._position < stop:
            data = self._read_some(stop)
            view[done : done + len(data)] = data
            self._digest(data, self._position)
            done += len(data)
            self._position += len(data)
        return done

    def _digest(self, data: bytes | memoryview, start: int) -> None:
        if start != self._num_digested:
            return
        for digest in self._digests:
            digest.update(data)
        self._num_digested += len(data)
        if self._num_digested == self._num_bytes:
            digests = [digest.hexdigest() for digest in self._digests]
            self._version.check_digests(*digests)
            self._file.read_sha256 = digests[0]

    def _read_some(self, stop: int) -> bytes | memoryview:
        """Return what is there of the bytes that follow, one at least."""
        here = self._position
        if self._answer is None:
            try:
                run = self._run()
                limit = min([self.limit, *(of.begin for of in self._runs if of.begin > here)])
                return run.read(here, stop - here, limit, self._num_bytes)
            except NoRangesError:
                self._answer = _OneAnswer(self._version, self._blocks)
        return self._answer.read(here, stop)

    def _run(self) -> _Run:
        """Return the run that goes on at the position, or a new one."""
        here, is_small = self._position, self._num_bytes <= SMALL_BYTES
        run = next((of for of in self._runs if of.is_near(here)), None)
        if run is not None:
            self._runs.remove(run)
        else:
            run = _Run(0 if is_small else here, self._fetch, 0 if self._version.is_kept else AHEAD)
            if is_small:
                begun = self._file.begun or _fetch_soon(self._fetch, 0, self._num_bytes)
                self._file.begun = None
                run.take(self._num_bytes, begun)
                self._digest(begun.result(), 0)
        self._runs.append(run)
        if len(self._runs) > NUM_RUNS:
            self._runs.pop(0).close()
        return run

    def close(self) -> None:
        """Let go of what was to be fetched."""
        for run in self._runs:
            run.close()
        self._runs = []
        if self._answer is not None:
            self._answer.close()
        super().close()


def stop_reading_ahead(file: Any, stop: int) -> None:
    """Let nothing behind `stop` be fetched ahead of an open file of any kind, of which a range is
    read."""
    if isinstance(file, RemoteReader):
        file.limit = min(file.limit, stop)


class _OneAnswer:
    """The answer of a server without ranges, from the first byte on, for as long as it is read. All
    of it is kept. Other processes may keep the same blocks at the same time."""

    def __init__(self, version: RemoteVersion, blocks: Blocks) -> None:
        self._version = version
        self._blocks = blocks
        self._block = -1, b""
        """The block that was read last: its number, and what is in it."""
        self._pieces = self._receive()

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two positions, as far as one block has them."""
        retries = self._version.retries()
        number, first = divmod(start, Blocks.block_bytes)
        if number != self._block[0]:
            self._block = number, self._blocks.find(number)
        while len(self._block[1]) <= first:
            try:
                received = next(self._pieces, None)
                if received is None:
                    raise TransientError(f"less than {stop:,} bytes")
                if received[0] == number:
                    self._block = received
            except TransientError as error:
                retries.wait(error)
                self._pieces = self._receive()
        return self._block[1][first : first + stop - start]

    def close(self) -> None:
        """End the answer."""
        self._pieces.close()

    def _receive(self) -> Generator[tuple[int, bytes]]:
        """Keep the blocks of an answer and yield them, each with its number."""
        version = self._version
        with version.access.open_at(0) as body:
            for number in range(-(-version.num_bytes // Blocks.block_bytes)):
                size = min(Blocks.block_bytes, version.num_bytes - number * Blocks.block_bytes)
                data, broken = read_all(body, size)
                version.check_answer(body)
                if len(data) < size:
                    raise broken or TransientError(f"less than {version.num_bytes:,} bytes")
                block = bytes(data)
                self._blocks.keep(number, block)
                yield number, block

"""A raw file elsewhere that is read as it arrives, of which nothing is kept on this disk.

For a dataset whose store is elsewhere too. Who reads on is a few requests ahead, so the network is
never waited for where it is as fast as the reader; who reads here and there fetches little.
"""

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from tokflow.errors import FetchError, RawFileError
from tokflow.raw.remote import Body, RemoteFile, TransientError, Validator, remote_error
from tokflow.raw.retries import Retries
from tokflow.store.positioned import PositionedReader

FIRST_BYTES = 2**16
"""Asked for by the first request; each of those that follow asks for four times as much."""
GAP_BYTES = 2**18
"""Passed over at most by who is still said to read on."""
SMALL_BYTES = 2**20
"""A file that is no larger is fetched by one request."""
PIECE_BYTES = 2**23
"""Asked for by one request at most."""
AHEAD = 3
"""Requests under way before their bytes are needed, of one run through the file."""
NUM_RUNS = 4
"""Places of a file that are read in turns, as the columns of parquet are."""


class NoRangesError(Exception):
    """A server answers with all of a file where it was asked for a range of it."""


def read_range(remote: RemoteFile, url: str, version: Validator, start: int, stop: int) -> bytes:
    """Return the bytes of one version of a file between two positions, both in it.

    Raises: RawFileError where another version is there; FetchError; NoRangesError.
    """
    found = bytearray()
    retries = Retries(url, partial(_gave_up, url))
    while (before := len(found)) < stop - start:
        try:
            with remote.open_at(start + before, stop) as body:
                _check_answer(body, remote, url, version, start + before, stop)
                while len(found) < stop - start and (data := body.read(stop - start - len(found))):
                    found += data
                if len(found) == before:
                    raise TransientError(f"{before:,} of {stop - start:,} bytes")
        except TransientError as error:
            retries.wait(error, has_advanced=len(found) > before)
    return bytes(found)


def _check_answer(
    body: Body, remote: RemoteFile, url: str, version: Validator, start: int, stop: int
) -> None:
    told = remote.probe() if body.validator is None else body.validator
    if not told.agrees_with(version):
        raise changed_version(url, version)
    if body.offset != start or (body.stop is None and stop != version.num_bytes):
        raise NoRangesError


def changed_version(url: str, version: Validator) -> RawFileError:
    """Return the error for a file of which another version is there than when the run began."""
    return remote_error(
        url,
        "another one",
        expected=f"the version that was there when the run began, {version.num_bytes or 0:,} bytes",
        remedy="run again, which reads the new version from its beginning",
    )


def _gave_up(url: str, found: str) -> FetchError:
    return FetchError(**remote_error(url, found, remedy="run again when it answers").fields())


@lru_cache(maxsize=1)
def _threads(_: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(16, thread_name_prefix="raw-file")


def fetch_soon(fetch: Callable[[int, int], bytes], start: int, stop: int) -> "Future[bytes]":
    """Fetch a range, of one byte at least, in a thread of this process."""
    return _threads(os.getpid()).submit(fetch, start, stop)


class _Run:
    """Consecutive pieces of a file, of which the next are under way once the first is read on."""

    def __init__(self, start: int, fetch: Callable[[int, int], bytes], end: int) -> None:
        self.begin = start
        """The first byte that was asked for."""
        self._fetch = fetch
        self._end = end
        self._pieces: deque[tuple[int, int, Future[bytes]]] = deque()
        self._next_bytes = FIRST_BYTES
        self.stop = start
        """The byte after the last that was asked for."""

    def is_near(self, position: int) -> bool:
        """Return whether a position is held, or so near that what is before it is fetched, too."""
        start = self._pieces[0][0] if self._pieces else self.stop
        return start <= position <= self.stop + GAP_BYTES

    def take(self, stop: int, piece: "Future[bytes]") -> None:
        """Hold what follows, up to `stop`, which was asked for."""
        self._pieces.append((self.stop, stop, piece))
        self.stop = stop

    def read(self, position: int, size: int, limit: int) -> memoryview:
        """Return what is held from a position on, up to so many bytes and one at least; ask for
        what follows, but for nothing behind `limit`."""
        while position >= self.stop:
            self._ask(max(size, position - self.stop), self._end)
        while len(self._pieces) > 2 and self._pieces[1][1] <= position:
            self._pieces.popleft()  # all but the piece before this one
        if position > self.begin:
            while sum(of[0] > position for of in self._pieces) < AHEAD and self.stop < limit:
                self._ask(1, limit)
        start, _, piece = next(of for of in self._pieces if of[0] <= position < of[1])
        return memoryview(piece.result())[position - start : position - start + size]

    def _ask(self, least: int, end: int) -> None:
        stop = min(end, self.stop + min(max(self._next_bytes, least), PIECE_BYTES))
        self._next_bytes = min(4 * self._next_bytes, PIECE_BYTES)
        self.take(stop, fetch_soon(self._fetch, self.stop, stop))

    def close(self) -> None:
        """Let go of what is not under way yet."""
        for _, _, piece in self._pieces:
            piece.cancel()


class StreamedReader(PositionedReader):
    """Reads one version of a file; see the module. Each read returns all that was asked for.

    Raises: RawFileError where another version is there by now; FetchError; what `on_end` raises.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        num_bytes: int,
        *,
        otherwise: Callable[[], io.RawIOBase],
        begun: "Callable[[], Future[bytes] | None]" = lambda: None,
        hashes: tuple[str, ...] = ("sha256",),
        on_end: Callable[..., None] | None = None,
    ) -> None:
        super().__init__(num_bytes)
        self._fetch = fetch
        self._otherwise = otherwise
        """Opens it for reading where a server knows no ranges."""
        self._other: io.RawIOBase | None = None
        self._begun = begun
        """Returns all bytes of a small file, if they are under way, once."""
        self._on_end = on_end
        """Called with the digests of a file that was read from its first byte to its last, or came
        whole."""
        self._digests = [hashlib.new(name, usedforsecurity=False) for name in hashes]
        self._num_digested = 0
        self._runs: list[_Run] = []
        """The one that was read last is the last."""
        self.limit = num_bytes
        """Nothing from here on is fetched before it is asked for."""

    def readinto(self, buffer: Any) -> int:
        """Read bytes into `buffer`, as many as it takes or the file has."""
        view, done = memoryview(buffer).cast("B"), 0
        stop = min(self._position + len(view), self._num_bytes)
        while self._position < stop:
            size = self._read_some(view[done : done + stop - self._position])
            if self._on_end is not None and self._position == self._num_digested:
                self._digest(view[done : done + size])
            done += size
            self._position += size
        if self._on_end is not None and self._num_digested == self._num_bytes:
            self._on_end(*(digest.hexdigest() for digest in self._digests))
            self._on_end = None
        return done

    def _digest(self, data: bytes | memoryview) -> None:
        for digest in self._digests:
            digest.update(data)
        self._num_digested += len(data)

    def _read_some(self, view: memoryview) -> int:
        """Read what is there of the bytes that follow, one at least."""
        if self._other is None:
            try:
                run = self._run()
                begun = (of.begin for of in self._runs if of.begin > self._position)
                data = run.read(self._position, len(view), min([self.limit, *begun]))
                view[: len(data)] = data
                return len(data)
            except NoRangesError:
                self._other = self._otherwise()
        self._other.seek(self._position)
        return int(self._other.readinto(view) or 0)

    def _run(self) -> _Run:
        """Return the run that goes on at the position, or a new one."""
        here = self._position
        run = next((of for of in self._runs if of.is_near(here)), None)
        if run is None:
            is_small = self._num_bytes <= SMALL_BYTES
            run = _Run(0 if is_small else here, self._fetch, self._num_bytes)
            if is_small:
                begun = self._begun() or fetch_soon(self._fetch, 0, self._num_bytes)
                run.take(self._num_bytes, begun)
                if self._on_end is not None and self._num_digested == 0:
                    self._digest(begun.result())
        else:
            self._runs.remove(run)
        self._runs.append(run)
        if len(self._runs) > NUM_RUNS:
            self._runs.pop(0).close()
        return run

    def close(self) -> None:
        """Let go of what was to be fetched."""
        for run in self._runs:
            run.close()
        self._runs = []
        if self._other is not None:
            self._other.close()
        super().close()


def read_until(file: Any, stop: int) -> None:
    """Let nothing behind `stop` be fetched ahead of an open file of any kind, of which a range is
    read."""
    if isinstance(file, StreamedReader):
        file.limit = min(file.limit, stop)

"""Read a remote file as it arrives: what follows is asked for ahead, so whoever reads on never
waits for a network that is as fast, and whoever reads here and there fetches little."""

import hashlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Protocol

from tokflow.store.positioned import PositionedReader

GAP_BYTES = 2**18
"""Passed over at most by a reader that is still said to read on."""
SMALL_BYTES = 2**20
"""A file that is no larger is fetched by one request."""
FIRST_BYTES = 2**16
"""Asked for by the first request of a run through the file; each of those that follow asks for
GROWTH times as much."""
GROWTH = 4
PIECE_BYTES = 2**23
"""Asked for by one request at most."""
AHEAD = 3
"""Requests under way before their bytes are needed: a network that is as fast as the reader is
never waited for."""
NUM_RUNS = 4
"""Places of a file that are read in turns, as the columns of parquet are."""


class NoRangesError(Exception):
    """A server answers with all of a file where it was asked for a range of it."""


class Unranged(Protocol):
    """A file of such a server, open for reading."""

    def read(self, start: int, stop: int) -> bytes:
        """Return some of the bytes between two positions, one at least."""

    def close(self) -> None:
        """End what the server still sends."""


@lru_cache(maxsize=1)
def _threads(_: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(16, thread_name_prefix="raw-file")


def fetch_soon(fetch: Callable[[int, int], bytes], start: int, stop: int) -> "Future[bytes]":
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
        """Return what is held from a position on, up to so many bytes and one at least; ask for
        what follows, but for nothing behind `limit`."""
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
        self.take(stop, fetch_soon(self._fetch, self.stop, stop))

    def close(self) -> None:
        """Let go of what is not under way yet."""
        for _, _, piece in self._pieces:
            piece.cancel()


class RemoteReader(PositionedReader):
    """Reads one version of a file. Each read returns all that was asked for, up to its end.

    Raises: what `fetch`, `otherwise` and `on_end` raise.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        num_bytes: int,
        *,
        otherwise: Callable[[], Unranged],
        ahead: int = AHEAD,
        begun: "Callable[[], Future[bytes] | None]" = lambda: None,
        hashes: tuple[str, ...] = ("sha256",),
        on_end: Callable[..., None] | None = None,
    ) -> None:
        super().__init__(num_bytes)
        self._fetch = fetch
        self._ahead = ahead
        self._otherwise = otherwise
        """Opens it where a server knows no ranges."""
        self._other: Unranged | None = None
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
            data = self._read_some(stop)
            view[done : done + len(data)] = data
            if self._position == self._num_digested:
                self._digest(data)
            done += len(data)
            self._position += len(data)
        if self._on_end is not None and self._num_digested == self._num_bytes:
            self._on_end(*(digest.hexdigest() for digest in self._digests))
            self._on_end = None
        return done

    def _digest(self, data: bytes | memoryview) -> None:
        for digest in self._digests if self._on_end is not None else ():
            digest.update(data)
        self._num_digested += len(data)

    def _read_some(self, stop: int) -> bytes | memoryview:
        """Return what is there of the bytes that follow, one at least."""
        here = self._position
        if self._other is None:
            try:
                run = self._run()
                limit = min([self.limit, *(of.begin for of in self._runs if of.begin > here)])
                return run.read(here, stop - here, limit, self._num_bytes)
            except NoRangesError:
                self._other = self._otherwise()
        return self._other.read(here, stop)

    def _run(self) -> _Run:
        """Return the run that goes on at the position, or a new one."""
        here, is_small = self._position, self._num_bytes <= SMALL_BYTES
        run = next((of for of in self._runs if of.is_near(here)), None)
        if run is not None:
            self._runs.remove(run)
        else:
            run = _Run(0 if is_small else here, self._fetch, self._ahead)
            if is_small:
                begun = self._begun() or fetch_soon(self._fetch, 0, self._num_bytes)
                run.take(self._num_bytes, begun)
                if self._num_digested == 0:
                    self._digest(begun.result())
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
    if isinstance(file, RemoteReader):
        file.limit = min(file.limit, stop)

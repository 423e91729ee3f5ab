"""A raw file elsewhere of which only what is read is fetched.

    raw/<key>/.blocks-<identity[:16]>/<file name>/    the blocks of one version of it

Readers get a path, and open it as any other. Where the store is elsewhere, too, no blocks are kept;
see `streamed`.
"""

import hashlib
import json
import os
import stat
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path, PosixPath
from typing import Any

from tokflow.errors import FetchError, RawFileError
from tokflow.raw.blocks import Blocks
from tokflow.raw.promised import check_promise, promised_md5
from tokflow.raw.remote import Body, RemoteFile, TransientError, Validator, remote_error
from tokflow.raw.retries import Retries
from tokflow.raw.streamed import (
    SMALL_BYTES,
    StreamedReader,
    changed_version,
    fetch_soon,
    read_range,
)
from tokflow.shown import redact
from tokflow.store.positioned import PositionedReader

LEAST_BYTES = 2**20
"""Fetched at once at first; twice as much each time that reading goes on where that ended."""
MOST_BYTES = 2**24
"""Fetched at once at most, so that no more than this is fetched in vain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteVersion:
    """One version of a file elsewhere."""

    remote: RemoteFile = field(repr=False)
    url: str = field(repr=False)
    url_sha256: str
    """Of the URL without userinfo."""
    validator: Validator
    sha256: str | None = None
    """Of the content, where its source tells it."""
    is_offline: bool = False
    """True if no server may be asked."""
    is_streamed: bool = False
    """True if nothing of it is kept on this disk."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole file."""
        return self.validator.num_bytes or 0

    def fetch_range(self, start: int, stop: int) -> bytes:
        """Return the bytes between two positions; see `read_range`."""
        return read_range(self.remote, self.url, self.validator, start, stop)

    @property
    def identity(self) -> dict[str, Any]:
        """All by which it is told from other versions and other files, as plain JSON."""
        return {"url_sha256": self.url_sha256, **asdict(self.validator)}

    @property
    def fingerprint(self) -> str:
        """The sha256 of the content, or in place of it that of `identity`."""
        if self.sha256 is not None:
            return self.sha256
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


class LazyPath(PosixPath):
    """The path of a raw file that is fetched as it is read: a folder of the blocks that were.

    A path and no file, for readers take paths, open them, several times, and name them in errors,
    and for it goes to worker processes. A path made from it, as of a block, is an ordinary one.
    """

    version: RemoteVersion | None = None
    read_sha256: str | None = None
    """Of the content, once it was read as it arrived, from its first byte to its last."""
    _begun: "Future[bytes] | None" = None

    @classmethod
    def of(cls, path: Path, version: RemoteVersion) -> "LazyPath":
        """Return the path of a version whose blocks are in the folder `path`."""
        lazy = cls(path)
        lazy.version = version
        return lazy

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyPath.of, (Path(os.fspath(self)), self.version)

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
        if self.version is None:
            return super().open(*mode, **options)
        in_blocks = partial(LazyReader, self.version, Blocks(self))
        if not self.version.is_streamed:
            return in_blocks()
        return StreamedReader(
            self.version.fetch_range,
            self.version.num_bytes,
            otherwise=in_blocks,
            begun=self._take_begun,
            hashes=("sha256",) if promised_md5(self.version) is None else ("sha256", "md5"),
            on_end=self._keep_digest,
        )

    def read_ahead(self) -> None:
        """Let a small file be fetched, since it is opened soon."""
        version = self.version
        if version is not None and version.is_streamed and 0 < version.num_bytes <= SMALL_BYTES:
            self._begun = fetch_soon(version.fetch_range, 0, version.num_bytes)

    def _take_begun(self) -> "Future[bytes] | None":
        begun, self._begun = self._begun, None
        return begun

    def _keep_digest(self, sha256: str, md5: str | None = None) -> None:
        if self.version is not None:
            check_promise(self.version, sha256, md5)
        self.read_sha256 = sha256


class LazyReader(PositionedReader):
    """Reads a version of a file from its blocks, and fetches those that are not there.

    Each read returns all that was asked for, up to the end of the file. What a server answers is
    kept only if it is of that version.

    Raises: RawFileError where another version is there now, where the disk is full, and where the
    network is needed and must not be used; FetchError.
    """

    def __init__(self, version: RemoteVersion, blocks: Blocks) -> None:
        super().__init__(version.num_bytes)
        self._version = version
        self._blocks = blocks
        self._num_at_once = LEAST_BYTES
        self._fetched_to: int | None = None
        self._opened = ExitStack()
        self._stream: tuple[Body, int] | None = None
        """The answer of a server that knows no ranges, and the position that it is at."""

    def readinto(self, buffer: Any) -> int:
        """Read bytes into `buffer`, as many as it takes or the file has."""
        view, done = memoryview(buffer).cast("B"), 0
        stop = min(self._position + len(view), self._num_bytes)
        while self._position < stop:
            block = self._blocks.find(self._position)
            if block is None:
                self._fetch(self._position, stop)
                continue
            data = self._blocks.read(block, self._position, stop)
            view[done : done + len(data)] = data
            done += len(data)
            self._position += len(data)
        return done

    def close(self) -> None:
        """End what a server still sends."""
        self._opened.close()
        super().close()

    def _fetch(self, start: int, stop: int) -> None:
        """Fetch the bytes from `start` to `stop` or so, trying again where a server breaks off."""
        goes_on = start == self._fetched_to
        self._num_at_once = min(2 * self._num_at_once, MOST_BYTES) if goes_on else LEAST_BYTES
        least = min(stop, start + MOST_BYTES)
        ends = [self._version.num_bytes, max(least, start + self._num_at_once)]
        ends += [] if (following := self._blocks.next_start(start)) is None else [following]
        stop, retries = min(ends), Retries(self._version.url, self._gave_up)
        self._fetched_to = stop
        while (block := self._blocks.find(start)) is None or block.stop < stop:
            start = start if block is None else block.stop
            try:
                self._attempt(start, stop)
            except TransientError as error:
                self._end_stream()
                retries.wait(error, has_advanced=self._blocks.find(start) is not None)

    def _attempt(self, start: int, stop: int) -> None:
        """Keep the bytes from `start` to `stop`, as far as one answer has them, and those that come
        before them in it."""
        body, position = self._answer(start, stop)
        stop = stop if body.stop is None else min(stop, body.stop)
        if stop <= start:
            raise TransientError(f"an answer that ends before byte {start:,}, which was asked for")
        while position < stop:
            size = min(stop - position, MOST_BYTES)
            data = _read_all(body, size)
            if body.validator is None and self._version.remote.probe() != self._version.validator:
                raise self._changed()
            known = self._blocks.find(position)
            if data and (known is None or known.stop < position + len(data)):
                self._blocks.keep(position, data)
            position += len(data)
            if len(data) < size:
                raise TransientError(f"{position:,} of {stop:,} bytes")
        self._stream = body, position
        if body.stop is not None:
            self._end_stream()

    def _answer(self, start: int, stop: int) -> tuple[Body, int]:
        """Return an answer of the server, and the position it is at: `start`, or one before it."""
        if self._version.is_offline:
            raise remote_error(
                self._version.url,
                f"none of {start:,} to {stop:,}",
                expected="the bytes to be read in the store, as asked not to use the network",
                remedy="read it once without `offline`, as `tokflow run` does",
            )
        if self._stream is not None and self._stream[1] <= start:
            return self._stream
        self._end_stream()
        body = self._opened.enter_context(self._version.remote.open_at(start, stop))
        if body.validator is not None and not body.validator.agrees_with(self._version.validator):
            raise self._changed()
        return body, body.offset

    def _end_stream(self) -> None:
        self._stream = None
        self._opened.close()

    def _changed(self) -> RawFileError:
        return changed_version(self._version.url, self._version.validator)

    def _gave_up(self, found: str) -> FetchError:
        remedy = "run again when the server answers; the bytes that arrived are kept"
        return FetchError(**remote_error(self._version.url, found, remedy=remedy).fields())


def _read_all(body: Body, num_bytes: int) -> bytes:
    """Return so many bytes, or what there is up to the end or up to where the answer breaks off."""
    found = bytearray()
    try:
        while len(found) < num_bytes and (data := body.read(num_bytes - len(found))):
            found += data
    except TransientError:
        if not found:
            raise
    return bytes(found)

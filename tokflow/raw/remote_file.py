"""A raw file that is not on this disk, as one version of it: read as it arrives, or fetched whole.

raw/<key>/.blocks-<fingerprint[:16]>/<file name>/    what is kept of it; see `blocks`
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path, PosixPath
from typing import Any

from tokflow.errors import RawFileError
from tokflow.raw.blocks import Blocks, Download
from tokflow.raw.reader import AHEAD, SMALL_BYTES, NoRangesError, RemoteReader, fetch_soon
from tokflow.raw.remote import (
    Access,
    AnotherVersionError,
    Body,
    Retries,
    TransientError,
    Validator,
    fetch_error,
    remote_error,
)
from tokflow.shown import redact
from tokflow.store.urls import split_url

AGAIN_BYTES = 2**23
"""Read at once where a file is read again."""

_no_md5: set[str] = set()
"""Buckets of this process with ETags that look like MD5 and are not, as of objects encrypted with
keys of KMS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteVersion:
    """One version of a remote file."""

    access: Access = field(repr=False)
    url: str = field(repr=False)
    url_sha256: str
    """Of the URL without userinfo."""
    validator: Validator
    sha256: str | None = None
    """Of the content, where its source tells it."""
    is_kept: bool = True
    """What is read of it is kept on this disk."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole file."""
        return self.validator.num_bytes or 0

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

    def fetch_range(self, start: int, stop: int) -> bytes:
        """Return the bytes between two positions, both in it, asked for until they are there.

        Raises: RawFileError where another version is there; FetchError; NoRangesError.
        """
        found, retries = bytearray(), self.retries()
        while (before := len(found)) < stop - start:
            try:
                with self.access.open_at(start + before, stop) as body:
                    is_to_the_end = body.stop is None and stop != self.num_bytes
                    if body.offset != start + before or is_to_the_end:
                        self.check_answer(body)
                        raise NoRangesError
                    data, broken = _read_all(body, stop - start - before)
                    self.check_answer(body)
                    found = found + data if found else data
                if not data or broken:
                    raise broken or TransientError(f"{before:,} of {stop - start:,} bytes")
            except TransientError as error:
                retries.wait(error, has_advanced=len(found) > before)
            except AnotherVersionError:
                raise self._changed() from None
        return bytes(found)

    def check_answer(self, body: Body) -> None:
        """Raise RawFileError if an answer is of another version."""
        found = self.access.probe() if body.validator is None else body.validator
        if not found.agrees_with(self.validator):
            raise self._changed()

    def _changed(self) -> RawFileError:
        return remote_error(
            self.url,
            "another one",
            expected=f"the version that was there when the run began, {self.num_bytes:,} bytes",
            remedy="run again, which reads the new version from its beginning",
        )

    def retries(self) -> Retries:
        """Return a new count of tries."""
        remedy = "run again when it answers"
        if self.is_kept:
            remedy = "run again when the server answers; the bytes that arrived are kept"
        return Retries(self.url, partial(fetch_error, self.url, remedy=remedy))

    @property
    def promised_md5(self) -> str | None:
        """The ETag of an object of S3, if it may be the MD5 of the content."""
        etag, bucket = self.validator.bare().etag, split_url(self.url).origin
        if etag is None or not re.fullmatch("[0-9a-f]{32}", etag) or self.sha256 is not None:
            return None
        return etag if bucket.startswith("s3://") and bucket not in _no_md5 else None

    def check_digests(self, sha256: str, md5: str | None = None) -> None:
        """Compare the digests of all that was read with those that the source tells: sha256 of the
        hub's large files, MD5 of what was put into S3 at once.

        An ETag that is not the MD5 may be another kind of ETag: then all is read again, once in a
        process for a bucket, and is right if the sha256 is the same.

        Raises: FetchError.
        """
        found, promised, again = None, self.promised_md5, hashlib.sha256()
        if self.sha256 not in (None, sha256):
            found = f"sha256 {sha256[:16]}… where its source says {self.sha256}"
        elif md5 is not None and promised not in (None, md5):
            for start in range(0, self.num_bytes, AGAIN_BYTES):
                again.update(self.fetch_range(start, min(start + AGAIN_BYTES, self.num_bytes)))
            if again.hexdigest() == sha256:
                _no_md5.add(split_url(self.url).origin)
                return
            found = f"MD5 {md5} where its ETag is {promised}"
        if found is not None:
            raise fetch_error(
                self.url,
                found,
                expected="the content that its source tells the digest of",
                remedy="run again, which reads it again; if it stays so, see what lies between",
            )


class RemoteFile(PosixPath):
    """The path of a raw file that is fetched as it is read: a folder of the blocks that were.

    A path and no file, for readers take paths, open them, several times, and name them in errors,
    and for it goes to worker processes. A path made from it is an ordinary one.
    """

    version: RemoteVersion | None = None
    read_sha256: str | None = None
    """Of the content, once it was read as it arrived, from its first byte to its last."""
    _begun: "Future[bytes] | None" = None

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
        if version is None:
            return super().open(*mode, **options)
        blocks, fetch = Blocks(self), version.fetch_range
        if version.is_kept:
            fetch = partial(blocks.fetched, fetch, num_bytes=version.num_bytes)
        return RemoteReader(
            fetch,
            version.num_bytes,
            ahead=0 if version.is_kept else AHEAD,
            otherwise=lambda: _OneAnswer(version, blocks),
            begun=self._take_begun,
            hashes=("sha256",) if version.promised_md5 is None else ("sha256", "md5"),
            on_end=None if version.is_kept else self._keep_digest,
        )

    def read_ahead(self) -> None:
        """Let a small file be fetched, since it is opened soon."""
        version = self.version
        if version is not None and not version.is_kept and 0 < version.num_bytes <= SMALL_BYTES:
            self._begun = fetch_soon(version.fetch_range, 0, version.num_bytes)

    def _take_begun(self) -> "Future[bytes] | None":
        begun, self._begun = self._begun, None
        return begun

    def _keep_digest(self, sha256: str, md5: str | None = None) -> None:
        if self.version is not None:
            self.version.check_digests(sha256, md5)
        self.read_sha256 = sha256


class _OneAnswer:
    """What a server without ranges sends: an answer that goes on for as long as it is read, of
    which all is kept."""

    def __init__(self, version: RemoteVersion, blocks: Blocks) -> None:
        self._version = version
        self._blocks = blocks
        self._opened = ExitStack()
        self._download = self._opened.enter_context(Download(blocks, version.validator))
        self._pieces = self._receive()

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two positions, as far as they have arrived."""
        retries = self._version.retries()
        while (num_bytes := self._download.num_bytes) <= start:
            try:
                if next(self._pieces, self) is self:
                    raise TransientError(f"{num_bytes:,} of {stop:,} bytes or more")
            except TransientError as error:
                retries.wait(error)
                self._pieces = self._receive()
        return self._blocks.read(start, min(stop, num_bytes))

    def close(self) -> None:
        """End the answer."""
        self._pieces.close()
        self._opened.close()

    def _receive(self) -> Generator[None]:
        version = self._version
        return self._download.receive(version.access, version.check_answer)


def _read_all(body: Body, num_bytes: int) -> tuple[bytearray, TransientError | None]:
    """Return so many bytes, or what there is up to the end or up to where the answer breaks off."""
    found = bytearray()
    try:
        while len(found) < num_bytes and (data := body.read(num_bytes - len(found))):
            found += data
    except TransientError as error:
        return found, error
    return found, None

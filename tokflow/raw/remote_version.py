"""Versions of remote files, whatever the protocol, and repeated requests for them."""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from tokflow.errors import FetchError, RawFileError
from tokflow.formatting import redact
from tokflow.store.urls import split_url

NUM_TRIES = 5
"""At a broken connection or a busy server, in a row; what arrives meanwhile begins the count
again."""
FIRST_WAIT_SECONDS = 1.0
"""Doubled after each try, up to 30 s; a longer wait that the server asks for is kept."""

AGAIN_BYTES = 2**23
"""Bytes of one request where a whole file is read again."""

_no_md5: set[str] = set()
"""Buckets of this process with ETags that look like MD5 and are not, as of objects encrypted with
keys of KMS."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Validator:
    """Headers or properties that identify a version of a file."""

    etag: str | None = None
    last_modified: str | None = None
    num_bytes: int | None = None

    @property
    def is_strong(self) -> bool:
        """Equal means equal bytes, so that a download may go on where it broke off.

        The size alone is enough to skip a download (there is nothing better to go by) but not to
        join two halves. A weak ETag (`W/"..."`) promises equal meaning, not equal bytes.
        """
        if self.etag is not None:
            return not self.etag.startswith("W/")
        return self.last_modified is not None

    def bare(self) -> "Validator":
        """Return the validator with an ETag without quotes, as in a listing."""
        return self if self.etag is None else replace(self, etag=self.etag.strip('"'))

    def least(self) -> "Validator":
        """Return what is enough to know a version by: of a strong ETag that and the size.

        Listings and answers of one store write times in several ways, and content that is written
        once more has the ETag that it had.
        """
        is_enough = self.etag is not None and self.is_strong
        return replace(self.bare(), last_modified=None) if is_enough else self


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of a file from `offset` to its end, or to where they were asked for."""

    offset: int
    """The first byte: the one that was asked for, or 0 where the server can only begin there."""
    num_bytes: int | None
    """Size of the whole file; None if the end is marked in another way, which `read` checks."""
    read: Callable[[int], bytes]
    """Returns up to that number of bytes; none only at the end. Raises TransientError."""
    validator: Validator | None = None
    """The version that the bytes are of; None where the answer does not report it."""
    stop: int | None = None
    """The byte after the last of a range; None if it goes on to the end of the file."""


class Access(Protocol):
    """The way to one remote file. It raises TransientError, or RawFileError if trying is no use."""

    def probe(self) -> Validator:
        """Ask, without reading the content, which version is there now."""

    def open_at(self, offset: int, stop: int | None = None) -> AbstractContextManager[Body]:
        """Open the file for reading once from `offset`, up to `stop` if that can be asked for."""


class AnotherVersionError(Exception):
    """A file is of another version than the one that is asked for."""


class NoRangesError(Exception):
    """A server answers with all of a file where it was asked for a range of it."""


class TransientError(Exception):
    """Something that another try may not meet again; its text has no secrets."""

    def __init__(self, found: str, *, wait_seconds: float = 0.0) -> None:
        super().__init__(found)
        self.wait_seconds = wait_seconds
        """For as long the server asks to be left alone."""


@dataclass(slots=True)
class Retries:
    """Tries at one file, counted."""

    url: str = field(repr=False)
    give_up: Callable[[str], Exception]
    """Returns the error to end with, by what was found."""
    _num_tries: int = 0
    _wait_seconds: float = 0.0

    def __call__(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, the first time that it raises no TransientError."""
        while True:
            try:
                return ask()
            except TransientError as error:
                self.wait(error)

    def wait(self, error: TransientError, *, has_advanced: bool = False) -> None:
        """Wait before the next try. Raises: what `give_up` returns if this was the last."""
        if has_advanced or self._num_tries == 0:
            self._num_tries, self._wait_seconds = 0, FIRST_WAIT_SECONDS
        self._num_tries += 1
        if self._num_tries >= NUM_TRIES:
            raise self.give_up(f"{error}, {self._num_tries} times in a row") from None
        wait = max(self._wait_seconds, error.wait_seconds)
        _log.warning("%s: %s; trying again in %.1f s", redact(self.url), error, wait)
        time.sleep(wait)
        self._wait_seconds = min(2 * self._wait_seconds, 30.0)


def remote_error(
    url: str,
    found: str,
    *,
    expected: str = "a file that can be read",
    remedy: str = "correct the URL under raw.files",
) -> RawFileError:
    """Return the error for a URL, without what is secret in it."""
    return RawFileError(where=redact(url), expected=expected, found=found, remedy=remedy)


def fetch_error(url: str, found: str, **fields: str) -> FetchError:
    """Return the error for a URL at which nothing is wrong, and that may be read later."""
    return FetchError(**remote_error(url, found, **fields).fields())


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteVersion:
    """One version of a remote file."""

    access: Access = field(repr=False)
    url: str = field(repr=False)
    url_sha256: str
    """The sha256 of the URL without userinfo."""
    validator: Validator
    sha256: str | None = None
    """The sha256 of the content, where its source reports it."""
    is_kept: bool = True
    """True if the bytes that are read are kept on this disk."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole file."""
        return self.validator.num_bytes or 0

    @property
    def identity(self) -> dict[str, Any]:
        """Identifiers of the file and its version, as plain JSON."""
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
                    data, broken = read_all(body, stop - start - before)
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
        pairs = zip(astuple(found.bare()), astuple(self.validator.bare()), strict=True)
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
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
        """Compare the digests of all that was read with those of the source: sha256 of the
        hub's large files, MD5 of what was put into S3 at once.

        An ETag that is not the MD5 may be another kind of ETag: then all is read again, once in a
        process for a bucket, and is right if the sha256 is the same.

        Raises: FetchError.
        """
        found, promised, again = None, self.promised_md5, hashlib.sha256()
        if self.sha256 not in (None, sha256):
            found = f"sha256 {sha256[:16]}… where its source has {self.sha256}"
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
                expected="content with the digest that its source reports",
                remedy="run again, which reads it again; if it stays so, see what lies between",
            )


def read_all(body: Body, num_bytes: int) -> tuple[bytearray, TransientError | None]:
    """Return `num_bytes`, or fewer at the end or where the answer breaks off."""
    found = bytearray()
    try:
        while len(found) < num_bytes and (data := body.read(num_bytes - len(found))):
            found += data
    except TransientError as error:
        return found, error
    return found, None

"""A remote file, whichever protocol it is reached by: how versions of it are told apart, and how
often it is asked for."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field, replace
from typing import Protocol, TypeVar

from tokflow.errors import FetchError, RawFileError
from tokflow.shown import redact

NUM_TRIES = 5
"""At a broken connection or a busy server, in a row; what arrives meanwhile begins the count
again."""
FIRST_WAIT_SECONDS = 1.0
"""Doubled after each try, up to 30 s; a longer wait that the server asks for is kept."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Validator:
    """The headers or properties by which one version of a file is told from another."""

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

    def agrees_with(self, other: "Validator") -> bool:
        """Return whether both tell the same, as far as both tell anything."""
        pairs = zip(astuple(self.bare()), astuple(other.bare()), strict=True)
        return all(one == another for one, another in pairs if None not in (one, another))

    def bare(self) -> "Validator":
        """Return it with its ETag as a listing has it, and as an answer does: without quotes."""
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
    """The first byte: the one that was asked for, or 0 where the server cannot begin elsewhere."""
    num_bytes: int | None
    """Size of the whole file; None if the end is marked in another way, which `read` checks."""
    read: Callable[[int], bytes]
    """Returns up to so many bytes; none only at the end. Raises TransientError."""
    validator: Validator | None = None
    """The version that the bytes are of; None where the answer does not tell it."""
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

"""The errors a caller can act on: where, expected, found, and what to do."""

import difflib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokflow.formatting import redacted, shown_text, stands_for_url


class TokflowError(Exception):
    """Anything that tokflow found wrong and a user can put right.

    Its text is one line, `where: expected ..., found ...; remedy`; the four are attributes too.
    URLs are in it without what is secret in them.
    """

    def __init__(
        self, *, where: object, expected: str, found: str, remedy: str, **attributes: Any
    ) -> None:
        """`attributes`: those that a subclass declares."""
        self.__dict__.update(attributes)
        fields = (redacted(shown_text(str(of))) for of in (where, expected, found, remedy))
        self.where, self.expected, self.found, self.remedy = fields
        super().__init__(
            f"{self.where}: expected {self.expected}, found {self.found}; {self.remedy}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)

    def fields(self) -> dict[str, str]:
        """Return the four fields by name, as another error takes them and `--json` shows them."""
        return {name: getattr(self, name) for name in ("where", "expected", "found", "remedy")}


class ConfigError(TokflowError, ValueError):
    """A dataset is declared in a way that cannot be built."""


class RawFileError(TokflowError, OSError):
    """A raw file is missing, unreadable, cut short, or changed while it was read."""


class BadContentError(RawFileError):
    """A raw file that was read holds something that no reader of its format takes: it stays so
    until the file is another."""


class ChangedFileError(RawFileError):
    """A raw file is another than the one that was hashed."""

    path: Path
    stamp: Any
    """How it looked then: a `store.listed_files.Stamp`."""


class FetchError(RawFileError):
    """A server did not give a raw file, however often it was asked; later it may."""


class BadDocumentError(TokflowError, ValueError):
    """A raw file holds something that is no document."""

    path: Path
    row: int
    """Ordinal in the file, from 0."""
    line: int | None = None
    """From 1."""
    byte_offset: int | None = None
    """Of the line's first byte in the decompressed file."""


class TokenizerError(TokflowError, ValueError):
    """A tokenizer cannot be loaded, lacks what the dataset asks of it, or gave an impossible id."""


class UnknownTokenizerError(TokenizerError, ConfigError):
    """A config names a tokenizer that is not there."""


class UntrustedCodeError(TokenizerError):
    """A tokenizer is Python code that nobody has allowed to run."""


class MissingOutputError(TokflowError, FileNotFoundError):
    """An output that a stage reads has not been made yet."""


class CorruptOutputError(TokflowError):
    """A file of an output is not what its manifest says."""


class ForeignOutputError(TokflowError):
    """An output of a newer tokflow, which this one neither reads nor replaces."""


def _restored(
    kind: type[TokflowError], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> TokflowError:
    """Return the error that another process had."""
    error = kind.__new__(kind, *arguments)
    Exception.__init__(error, *arguments)
    error.__dict__.update(attributes)
    return error


def shortened(words: Sequence[object], shown: int = 5) -> list[str]:
    """Return the first words and, if there are more, `and 3 more`."""
    more = [f"and {len(words) - shown:,} more"] if len(words) > shown else []
    return [*map(str, words[:shown]), *more]


def first_five(words: Sequence[str]) -> str:
    """Return the first five words on one line, and how many there are more."""
    return ", ".join(shortened(words))


def message_of(error: BaseException, *, where: object) -> str:
    """Return the message of an error for a user, on one line; see `explained`."""
    return str(explained(error, where=where))


def explained(error: BaseException, *, where: object) -> TokflowError:
    """Return an error, whatever it is, with the four fields of a TokflowError.

    `where` is what was being done, for an error that names no file itself.
    """
    if isinstance(error, TokflowError):
        return error
    if isinstance(error, OSError):
        expected, remedy = SYSTEM_ERRORS.get(
            error.errno or 0, ("a successful system call", "fix the cause")
        )
        if error.filename is not None:
            name = error.filename
            where = os.fsdecode(name) if isinstance(name, bytes) else name or repr(name)
        cache = stands_for_url(str(where))
        if cache is not None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            where = Path(cache).parent
            expected, remedy = f"{expected} of the cache of stores at URLs", _CACHE
        is_of_system = error.errno in errno.errorcode  # those of name servers are below 0
        found = os.strerror(error.errno) if is_of_system and error.errno else str(error)
        return TokflowError(where=where, expected=expected, found=found, remedy=remedy)
    found = f"{type(error).__name__}: {' '.join(str(error).split())}"
    expected, remedy = "to finish without an error", _BUG
    if isinstance(error, UnicodeEncodeError):
        expected, found, remedy = "UTF-8", repr(error.object[:100]), "give it another name"
    elif isinstance(error, MemoryError):
        expected = "enough memory"
        remedy = "run it where there is more, or read less at once (documents.limit)"
    return TokflowError(where=where, expected=expected, found=found, remedy=remedy)


_BUG = (
    "run `tokflow verify` to see whether the store is damaged; if it is not, this is a bug of "
    "tokflow, of which TOKFLOW_DEBUG=1 shows the traceback"
)
_ROOM = "free some, or set `store` to another disk, and run again: finished outputs stay"
_CACHE = (
    "set TOKFLOW_CACHE to a folder on another disk, or make room: what is finished is at the URL, "
    "and TOKFLOW_CACHE_BYTES limits what is kept here"
)
_DISK = "look into the system's log (dmesg): the disk or the network it is reached by is failing"
_HANDLES = "raise the limit with `ulimit -n`"
_PERMISSION = "change its owner or permissions, or name another place"

SYSTEM_ERRORS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("room on the disk", _ROOM),
    errno.EDQUOT: ("room in your quota of the disk", _ROOM),
    errno.EFBIG: (
        "to be able to write a file of that size",
        "raise the limit with `ulimit -f`, or take a disk whose file system has such files",
    ),
    errno.EACCES: ("permission to use it", _PERMISSION),
    errno.EPERM: ("permission to use it", _PERMISSION),
    errno.EROFS: (
        "a place that can be written",
        "mount it for writing, or set `store` to another place",
    ),
    errno.ENAMETOOLONG: (
        "a shorter name (most file systems take 255 bytes for each)",
        "shorten it, or the names it is made of",
    ),
    errno.EMFILE: ("to be able to open one more file", _HANDLES),
    errno.ENFILE: ("to be able to open one more file", _HANDLES),
    errno.EIO: ("a disk that works", _DISK),
    errno.ESTALE: ("a disk that works", _DISK),
    errno.ENOENT: ("a file or folder", "restore it, or correct the path"),
    errno.EISDIR: ("a file", "name a file in it, or move the folder away"),
    errno.ENOTDIR: ("a folder", "move the file away that is in its place, or correct the path"),
    errno.ELOOP: ("a link that leads to a file", "correct the link, which leads back to itself"),
    errno.ENOTEMPTY: ("an empty folder", "move what is in it, or run again"),
    errno.ENOMEM: ("enough memory", "run it where there is more"),
}
"""The parts of a message that an error of the system does not tell: expected, and remedy."""


def nearest(word: object, known: Sequence[str]) -> str | None:
    """Return a remedy that names the known word which `word` is most like, or is one word of; None
    without one."""
    near = difflib.get_close_matches(str(word), known, n=1)
    near = near or [name for name in known if str(word) in name.split("_")]
    return f"did you mean {near[0]!r}?" if near else None

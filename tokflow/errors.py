"""The errors a caller can act on; each message says where, expected, found, and what to do."""

import difflib
import errno
import os
from collections.abc import Sequence
from pathlib import Path


class TokflowError(Exception):
    """Anything that tokflow found wrong and a user can put right."""


class ConfigError(TokflowError, ValueError):
    """A dataset is declared in a way that cannot be built."""


class RawFileError(TokflowError, OSError):
    """A raw file is missing, unreadable, cut short, or changed while it was read."""


class BadDocumentError(TokflowError, ValueError):
    """A raw file holds something that is no document.

    `path`, `row` (ordinal in the file, from 0), `line` (from 1, or None) and `byte_offset`
    (of the line's first byte in the decompressed file, or None) say where.
    """

    def __init__(
        self,
        message: str,
        *,
        path: Path,
        row: int,
        line: int | None = None,
        byte_offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.row = row
        self.line = line
        self.byte_offset = byte_offset


class TokenizerError(TokflowError, ValueError):
    """A tokenizer cannot be loaded, lacks what the dataset asks of it, or gave an impossible id."""


class UntrustedCodeError(TokenizerError):
    """A tokenizer is Python code that nobody has allowed to run."""


class MissingOutputError(TokflowError, FileNotFoundError):
    """An output that a stage reads has not been made yet."""


class CorruptOutputError(TokflowError):
    """A file of an output is not what its manifest says."""


class ForeignOutputError(TokflowError):
    """An output of a newer tokflow, which this one neither reads nor replaces."""


def four_parts(*, where: object, expected: str, found: str, remedy: str) -> str:
    """Return the one form that every message of tokflow has.

    `where: expected ..., found ...; remedy`
    """
    return f"{where}: expected {expected}, found {found}; {remedy}"


def first_five(words: Sequence[str]) -> str:
    """Return the first five words on one line."""
    return ", ".join(words[:5]) + (", ..." if len(words) > 5 else "")


def message_of(error: BaseException, *, where: object) -> str:
    """Return what to tell a user of an error, whatever it is: always the four parts.

    `where` is what was being done, for an error that names no file itself.
    """
    if isinstance(error, TokflowError):
        return str(error)
    if isinstance(error, OSError):
        return _message_of_system(error, where)
    found = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, UnicodeEncodeError):
        name = repr(error.object[:100])
        return four_parts(where=where, expected="UTF-8", found=name, remedy="give it another name")
    if isinstance(error, MemoryError):
        remedy = "run it where there is more, or read less at once (documents.limit)"
        return four_parts(where=where, expected="enough memory", found=found, remedy=remedy)
    return four_parts(
        where=where,
        expected="to end well",
        found=found,
        remedy="run `tokflow verify` to see whether the store is damaged; if it is not, this is a "
        "bug of tokflow, of which TOKFLOW_DEBUG=1 shows the traceback",
    )


def _message_of_system(error: OSError, where: object) -> str:
    expected, remedy = SYSTEM_ERRORS.get(error.errno or 0, ("a system that does it", "mend that"))
    if error.filename is not None:
        name = error.filename
        where = os.fsdecode(name) if isinstance(name, bytes) else name or repr(name)
    found = str(error) if error.errno is None else os.strerror(error.errno)
    return four_parts(where=where, expected=expected, found=found, remedy=remedy)


_ROOM = "free some, or set `store` to another disk, and run again: what is finished stays"
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
    """Return a remedy that names the known word which `word` is most like; None without one."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else None

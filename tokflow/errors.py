"""The errors a caller can act on; each message says where, expected, found, and what to do."""

import difflib
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


class MissingOutputError(TokflowError, FileNotFoundError):
    """An output that a stage reads has not been made yet."""


class CorruptOutputError(TokflowError):
    """A file of an output is not what its manifest says."""


def four_parts(*, where: object, expected: str, found: str, remedy: str) -> str:
    """Return the one form that every message of tokflow has.

    `where: expected ..., found ...; remedy`
    """
    return f"{where}: expected {expected}, found {found}; {remedy}"


def shortened(words: Sequence[str]) -> str:
    """Return the first five words on one line."""
    return ", ".join(words[:5]) + (", ..." if len(words) > 5 else "")


def nearest(word: object, known: Sequence[str]) -> str | None:
    """Return a remedy that names the known word which `word` is most like; None without one."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else None

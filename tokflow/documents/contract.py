"""What a reader is told (`DocumentsConfig`) and what it gives (`Found`, `Batch`, `Reject`)."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import ConfigError, four_parts

FileFormat: TypeAlias = Literal["parquet", "jsonl", "csv", "tsv", "txt", "arrow"]
DocumentPer: TypeAlias = Literal["file", "line", "separator"]
OnBadDocument: TypeAlias = Literal["error", "reject"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Where reading one raw file stops; without a field set it stops at the end."""

    documents: int | None = None
    """Accepted documents to read from each raw file; rejects do not count."""
    characters: int | None = None
    """Unicode code points to read from each raw file; the document that reaches it is whole."""

    def __post_init__(self) -> None:
        for name, value in (("documents", self.documents), ("characters", self.characters)):
            if value is not None and value < 1:
                raise _field_error(f"limit.{name}", "at least 1, or null for no limit", value)


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentsConfig:
    """How the documents of a raw file are found. Their text is never altered."""

    text: str | tuple[str, ...] = "text"
    """The field or column that holds the text.

    A dotted path leads into nested objects: `meta.body`. In parquet and arrow a top-level
    column whose own name is `meta.body` comes first; in jsonl a dot always means nesting; in
    csv and tsv it never does. Several columns give one document each, in the order named:
    with 2 columns record 5 holds the documents 10 and 11. txt has no columns.
    """
    format: Literal["auto"] | FileFormat = "auto"
    """The format of the raw files; `auto` goes by the suffix (.json is read as jsonl).

    A further suffix .gz, .zst, .bz2 or .xz means that the file is compressed (not for parquet
    and arrow, which compress inside).
    """
    document_per: DocumentPer = "file"
    r"""What one document of a txt file is: the whole `file`, a `line`, or a piece between
    `separator`s.

    `file`: an empty file is one empty document. `line`: a line ends at \n alone, which is not
    part of it (a \r is); a last line without \n counts; an empty file has no documents.
    `separator`: in the same way, with `separator` for \n.
    """
    separator: str | None = None
    """The text between the documents of a txt file with `document_per: separator`."""
    on_bad_document: OnBadDocument = "error"
    """`error` stops at the first bad document; `reject` sets it aside and goes on."""
    max_rejects: int = 1000
    """With `on_bad_document: reject`: one bad document more than this in a file is an error."""
    limit: Limit = Limit()
    """Where reading each raw file stops, so that a part of a file costs a part of the time."""

    def __post_init__(self) -> None:
        if isinstance(self.text, list):  # as YAML has it
            object.__setattr__(self, "text", tuple(self.text))
        self._check_text()
        self._check_separator()
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _field_error(name, f"one of {', '.join(choices)}", getattr(self, name))
        if self.max_rejects < 0:
            raise _field_error("max_rejects", "0 or more", self.max_rejects)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `text`, also where it is one."""
        return (self.text,) if isinstance(self.text, str) else self.text

    def _check_text(self) -> None:
        columns = self.columns
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise _field_error("text", "the name of a column, or several", self.text)
        if len(set(columns)) < len(columns):
            raise _field_error("text", "each column once", self.text)

    def _check_separator(self) -> None:
        if self.document_per != "file" and self.format not in ("auto", "txt"):
            expected = f"file, for {self.format} has its own records"
            raise _field_error("document_per", expected, self.document_per)
        if self.document_per == "separator" and not self.separator:
            expected = "the text between documents, for document_per is separator"
            raise _field_error("separator", expected, self.separator)
        if self.document_per != "separator" and self.separator is not None:
            expected = f"null, for document_per is {self.document_per}"
            raise _field_error("separator", expected, self.separator)


def deciding_fields(config: DocumentsConfig) -> dict[str, Any]:
    """Return the fields that decide which documents a raw file holds, as plain JSON.

    `max_rejects` is not among them: it decides whether there is an output, not what is in it.
    """
    fields = dataclasses.asdict(config)
    del fields["max_rejects"]
    return fields


_CHOICES: dict[str, tuple[str, ...]] = {
    "format": ("auto", *get_args(FileFormat)),
    "document_per": get_args(DocumentPer),
    "on_bad_document": get_args(OnBadDocument),
}


def _field_error(field: str, expected: str, found: object) -> ConfigError:
    where = f"documents.{field}"
    return ConfigError(
        four_parts(where=where, expected=expected, found=repr(found), remedy=f"correct {where}")
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one raw file in their order. Every array has shape (num_documents,)."""

    rows: npt.NDArray[np.int64]
    """Ordinal of each document in the raw file, ascending; rejects leave a gap."""
    texts: pa.LargeStringArray
    """Valid UTF-8 without nulls, laid end to end; the array's own `offset` may be above 0."""
    num_chars: npt.NDArray[np.int64]
    """Unicode code points of each document."""

    def slice(self, start: int, end: int) -> "Batch":
        """Return the documents `start` to `end` of the batch, without a copy."""
        return Batch(
            self.rows[start:end],
            self.texts.slice(start, end - start),
            self.num_chars[start:end],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A bad document that was set aside."""

    row: int
    """Ordinal in the raw file; no document takes it."""
    line: int | None
    """Line of the decompressed file, from 1; null where the format has no lines."""
    byte_offset: int | None
    """Byte of the decompressed file, of the record's first byte."""
    reason: str
    """What was expected and what was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BadDocument:
    """A record that is no document: where it is, and the parts of its error."""

    row: int
    expected: str
    found: str
    line: int | None = None
    byte_offset: int | None = None
    remedy: str | None = None
    """What to do other than mend the record."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader found in one stretch of a raw file."""

    batch: Batch
    """May be empty, and of any size."""
    bad: tuple[BadDocument, ...] = ()
    """In the order of their rows."""


Reader: TypeAlias = Callable[[Path, DocumentsConfig, int], Iterator[Found]]
"""Reads a file in stretches of about so many bytes. Reads no further than it is asked to."""


def shortened(value: object, *, length: int = 60) -> str:
    """Return the value's repr, cut to about `length` characters."""
    head = value[:length] if isinstance(value, (str, bytes)) else value
    text = repr(head)
    return text if len(text) <= length and head == value else f"{text[: length - 3]}..."

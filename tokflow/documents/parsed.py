"""Documents, and bad ones, out of the columns that a reader cut from consecutive records."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents.batch import Batch, Reject, Spans
from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.documents.encodings import Encoding, in_file
from tokflow.documents.ranges import Place
from tokflow.store.arrow import texts_of, to_arrow, to_numpy


class Problem(NamedTuple):
    """Why a record is no document."""

    expected: str
    found: str
    remedy: str | None = None
    """Another thing to do than to mend the record."""


def are_messages(value: object) -> bool:
    """Return whether a value is a chat: a list of messages, each with a role and content."""
    messages = value if isinstance(value, list) else []
    return bool(messages) and all(
        isinstance(of, dict) and {"role", "content"} <= of.keys() for of in messages
    )


class BadDocument(NamedTuple):
    """A record that is no document: where it is, and what is wrong with it."""

    row: int
    place: Place
    problem: Problem
    record: int | None = None
    """With a transform: the ordinal of the record; else the row says it."""

    def moved(self, rows: int, records: int) -> "BadDocument":
        """Return the same, so many rows and records further on."""
        record = None if self.record is None else self.record + records
        return self._replace(row=self.row + rows, record=record)

    def as_reject(self) -> Reject:
        """Return it as one that was set aside."""
        line, byte_offset = self.place
        reason = f"expected {self.problem.expected}, found {self.problem.found}"
        return Reject(
            row=self.row, line=line, byte_offset=byte_offset, reason=reason, record=self.record
        )


def no_place(row: int) -> Place:
    """Return that a format has no lines."""
    return None, None


@dataclass(frozen=True, slots=True)
class ParsedBatch:
    """Documents and bad documents that a reader found in consecutive records of a raw file.

    Rows are counted from the first of these records.
    """

    batch: Batch
    """May be empty, and of any size. Of messages the texts are JSON, which `Render` turns into
    the documents."""
    bad: tuple[BadDocument, ...] = ()
    """In the order of their rows."""
    place: Callable[[int], Place] = no_place
    """Gives the place of each row."""
    left_out: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The rows that stand for records of which a transform made no document."""
    is_uncut: bool = False
    """True if this is all of a txt file, in which the separator of documents occurs nowhere."""

    @property
    def num_rows(self) -> int:
        """Documents, bad ones, and records that were left out."""
        return len(self.batch.rows) + len(self.bad) + len(self.left_out)

    @property
    def num_records(self) -> int:
        """Records that these are of, where a transform may make several documents of one."""
        records = self.batch.records
        if records is None:
            return self.num_rows
        num_with_documents = int(np.count_nonzero(np.diff(records, prepend=-1)))
        return num_with_documents + len(self.bad) + len(self.left_out)

    def moved(self, rows: int, records: int) -> "ParsedBatch":
        """Return the same, so many rows and records further on in the file, without places."""
        batch = replace(self.batch, rows=self.batch.rows + rows)
        if batch.records is not None:
            batch = replace(batch, records=batch.records + records)
        bad = tuple(each.moved(rows, records) for each in self.bad)
        return ParsedBatch(batch, bad, left_out=self.left_out + rows, is_uncut=self.is_uncut)


Render: TypeAlias = Callable[[ParsedBatch], ParsedBatch]
"""Makes documents of the messages that were found."""


def parse(
    columns: Sequence[pa.LargeBinaryArray],
    config: DocumentsConfig,
    *,
    place: Callable[[int], Place] = no_place,
    problems: Mapping[int, Problem] | None = None,
    num_chars: Sequence[npt.NDArray[np.int64]] | None = None,
    encoding: Encoding = "utf-8",
) -> ParsedBatch:
    """Return the documents of consecutive records, of which `columns` hold the fields.

    Each record is one document, its columns joined, or each of its columns is one. A document is
    bad that is among `problems`, by row, or has a column that is null, invalid UTF-8 or too large.
    `place` gives the place of a record, `num_chars` the Unicode code points of each column, where
    they are known to be text, `encoding` that of the file.
    """
    num_each = config.documents_per_record
    if num_each > 1:
        # A file of plain text has one column, whatever the config names.
        in_turn = np.arange(sum(map(len, columns))).reshape(len(columns), -1).T.ravel()
        columns = [pa.concat_arrays(columns).take(to_arrow(in_turn))]
        num_chars = None if num_chars is None else [np.stack(num_chars, axis=1).ravel()]
    rows = np.arange(len(columns[0]), dtype=np.int64)
    sizes = sum(np.diff(ends_of(column), prepend=0) for column in columns if len(column))
    beyond = np.flatnonzero(sizes > config.limit.document_bytes).tolist()
    wrong = dict.fromkeys(beyond, too_large(config.limit))
    wrong |= dict(problems or {})
    if num_chars is None:
        _add_no_text(columns, encoding, wrong)
    if wrong:
        is_good = ~np.isin(rows, list(wrong))
        rows = rows[is_good]
        columns = [column.filter(to_arrow(is_good)) for column in columns]
        num_chars = None if num_chars is None else [of_each[is_good] for of_each in num_chars]
    texts = [column.view(pa.large_string()) for column in columns]
    if num_chars is None:
        num_chars = [num_chars_of(column) for column in texts]
    batch = _joined(rows, texts, num_chars, config)
    bad = (BadDocument(row, place(row // num_each), wrong[row]) for row in sorted(wrong))
    return ParsedBatch(batch, tuple(bad), lambda row: place(row // num_each))


def _joined(
    rows: npt.NDArray[np.int64],
    columns: Sequence[pa.LargeStringArray],
    num_chars: Sequence[npt.NDArray[np.int64]],
    config: DocumentsConfig,
) -> Batch:
    """Return documents that are each the columns of a row; a prompt is not in the loss."""
    if len(columns) == 1:
        return Batch(rows, columns[0], num_chars[0])
    import pyarrow.compute as pc

    separator = config.separator_of_columns or ""
    texts = pc.binary_join_element_wise(*columns, texts_of([separator.encode()])[0])
    total = np.sum(num_chars, axis=0) + len(separator) * (len(columns) - 1)
    if config.prompt is None:
        return Batch(rows, texts, total)
    one_each = np.arange(len(rows) + 1, dtype=np.int64)
    return Batch(rows, texts, total, Spans(one_each, num_chars[0], total))


def all_bad(problem: Problem, places: Iterable[Place]) -> ParsedBatch:
    """Return records at these places that are all bad."""
    none = np.zeros(0, dtype=np.int64)
    bad = (BadDocument(row, place, problem) for row, place in enumerate(places))
    return ParsedBatch(Batch(none, texts_of([]), none), tuple(bad))


def ends_of(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the byte at which each text ends, counted from the first text's start."""
    offsets = np.frombuffer(
        texts.buffers()[1], np.int64, count=len(texts) + 1, offset=8 * texts.offset
    )
    ends: npt.NDArray[np.int64] = offsets[1:] - offsets[0]
    return ends


def invalid_text(value: bytes, encoding: Encoding = "utf-8") -> Problem | None:
    """Return the problem of the first byte that is none of an encoding, if there is one; of others
    than UTF-8 the value is as `encodings` makes it."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        start, reason = error.start, error.reason
        if encoding != "utf-8":
            start, reason = len(in_file(value[:start], encoding)), "no character"
            value = in_file(value, encoding)
        around = excerpt(value[max(0, start - 10) : start + 20])
        return Problem(f"valid {encoding.upper()}", f"{reason} at byte {start:,}, in {around}")
    return None


def too_large(limit: Limit) -> Problem:
    """Return the problem of a document beyond the limit."""
    remedy = "raise documents.limit.document_bytes"
    return Problem(f"at most {limit.document_bytes:,} bytes", "more", remedy)


def excerpt(value: object, *, length: int = 60) -> str:
    """Return the value's repr, cut to about `length` characters."""
    head = value[:length] if isinstance(value, (str, bytes)) else value
    text = repr(head)
    return text if len(text) <= length and head == value else f"{text[: length - 3]}..."


def value_json(value: Any, *, has_nested_bytes: bool = False) -> bytes:
    """Return the JSON of a value for a transform: bytes as text, times in ISO 8601, NaN and
    infinity as null; of invalid UTF-8 the bytes themselves, which `parse` finds."""
    try:
        if has_nested_bytes or isinstance(value, bytes):
            value = _decoded(value)
    except UnicodeDecodeError as error:
        return error.object
    return msgspec.json.encode(value, enc_hook=lambda time: str(time.isoformat()))


def _decoded(value: Any) -> Any:
    """Return a value with text in place of bytes, at any depth."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return [_decoded(each) for each in value]
    if isinstance(value, dict):
        return {name: _decoded(each) for name, each in value.items()}
    return value


def holds_no_number(value: Any) -> bool:
    """Return whether a value is or holds NaN or infinity, for which JSON has no words."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(holds_no_number, value.values()))
    return isinstance(value, (list, tuple)) and any(map(holds_no_number, value))


def num_chars_of(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the Unicode code points of each text."""
    import pyarrow.compute as pc  # 0.06 s that only reading needs

    return to_numpy(pc.utf8_length(texts))


def _add_no_text(
    columns: Sequence[pa.LargeBinaryArray], encoding: Encoding, problems: dict[int, Problem]
) -> None:
    """Add the problem of the first column that is no text, of rows that have none yet."""
    for column in columns:
        suspects = np.flatnonzero(to_numpy(column.is_null())) if column.null_count else ()
        try:
            column.view(pa.large_string()).validate(full=True)
        except pa.ArrowInvalid:
            suspects = np.arange(len(column))
        for row in map(int, suspects):
            value = column[row].as_py()
            problem = _NULL if value is None else invalid_text(value, encoding)
            if problem is not None:
                problems.setdefault(row, problem)


_NULL = Problem("text", "null")

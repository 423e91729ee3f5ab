"""Batches of documents: what a format's reader found in consecutive records, valid or bad."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.documents.decoding import Encoding, in_file
from tokflow.store.tables import offsets_of, text_buffers, texts_of, to_arrow, to_numpy

Place: TypeAlias = tuple[int | None, int | None]
"""Line and byte offset of a record's first byte in the decompressed file; None without lines. In a
range, lines are counted from its first, from 1."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of characters of documents, some for each; in code points, int64."""

    offsets: npt.NDArray[np.int64]
    """Shape (num_documents + 1,), offsets[0] = 0: which spans are each document's."""
    starts: npt.NDArray[np.int64]
    """Shape (num_spans,), counted from the start of the document; ascending in each."""
    stops: npt.NDArray[np.int64]
    """Shape (num_spans,)."""
    kinds: npt.NDArray[np.int64] | None = None
    """Shape (num_spans,): index of the kind of each; None where all are of one kind."""

    @classmethod
    def of(
        cls, spans: Sequence[Sequence[tuple[int, int]]], kinds: Sequence[int] | None = None
    ) -> "Spans":
        """Return spans given as (start, stop), a list for each document; `kinds`: of all of them,
        one after another."""
        offsets = offsets_of([len(of_document) for of_document in spans])
        flat = [span for of_document in spans for span in of_document]
        edges = np.array(flat, dtype=np.int64).reshape(-1, 2)
        of_kinds = None if kinds is None else np.array(kinds, dtype=np.int64)
        return cls(offsets, edges[:, 0].copy(), edges[:, 1].copy(), of_kinds)

    def __getitem__(self, kept: slice) -> "Spans":
        """Return the spans of some documents, end to end."""
        offsets = self.offsets[kept.start : kept.stop + 1]
        spans = slice(int(offsets[0]), int(offsets[-1]))
        kinds = None if self.kinds is None else self.kinds[spans]
        return Spans(offsets - offsets[0], self.starts[spans], self.stops[spans], kinds)

    def document(self, index: int) -> list[tuple[int, int]]:
        """Return the spans of one document as (start, stop)."""
        kept = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return list(zip(self.starts[kept].tolist(), self.stops[kept].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one raw file in their order. Every array has shape (num_documents,)."""

    rows: npt.NDArray[np.int64]
    """Ordinal of each document in the raw file, ascending; rejects leave a gap."""
    texts: pa.LargeStringArray
    """Valid UTF-8 without nulls, laid end to end; the array's own `offset` may be above 0."""
    num_chars: npt.NDArray[np.int64]
    """Unicode code points of each document."""
    loss_spans: Spans | None = None
    """Characters of chats that count in the loss; None: all of them."""
    spelt: Spans | None = None
    """Special tokens in texts that a chat template wrote which come from the messages, and not from
    the template itself. None for all other texts."""
    records: npt.NDArray[np.int64] | None = None
    """With a transform, the ordinal in the raw file of the record that each document was made of,
    ascending; None where the row says it."""
    turns: Spans | None = None
    """Messages in texts that a chat template wrote, with the index of their role in `ROLES`."""
    chat_counts: npt.NDArray[np.int64] | None = None
    """Of documents that a chat template wrote: shape (num_documents, len(CHAT_COUNTS))."""
    tokens: Any = None
    """The `TokenBatch` of the documents, where a limit of tokens is counted; None where the tokens
    are made after the reading."""

    def slice(self, start: int, end: int) -> "Batch":
        """Return the documents `start` to `end` of the batch, without a copy."""
        end = min(end, len(self.rows))
        parts = [getattr(self, name) for name in self.__slots__]
        kept: list[Any] = [of if of is None else of[start:end] for of in parts]
        return Batch(*kept)


def joined(some: Sequence[Any]) -> Any:
    """Return batches of one dataset, or what they hold, as one: field by field, end to end."""
    if len(some) < 2:
        return some[0] if some else None
    if isinstance(some[0], np.ndarray):
        return np.concatenate(some)
    if isinstance(some[0], pa.Array):
        return pa.concat_arrays(some)
    fields = [[getattr(each, name) for each in some] for name in some[0].__slots__]
    if isinstance(some[0], Spans):
        fields[0] = [offsets_of(np.concatenate([np.diff(offsets) for offsets in fields[0]]))]
    return type(some[0])(*(joined([of for of in field if of is not None]) for field in fields))


@dataclass(frozen=True, slots=True)
class Reject:
    """A bad document that was set aside; a line of rejects.jsonl."""

    row: int
    """Ordinal in its raw file, or in the range of it that is read; no document takes it."""
    line: int | None
    """Line of the decompressed file, or of the range, from 1; null where the format has none."""
    byte_offset: int | None
    """Byte of the decompressed file at which the record begins; null in other encodings than
    UTF-8."""
    reason: str
    """The expected and the found of its error."""
    raw_file: str | None = None
    """The key of its raw file, where a partition is a group of them."""
    record: int | None = None
    """With a transform: the ordinal of the record, as `row` counts; null where the row says it."""

    def moved(self, rows: int, lines: int, records: int) -> "Reject":
        """Return the same reject with `rows`, `lines` and `records` added to its ordinals."""
        line = None if self.line is None else self.line + lines
        record = None if self.record is None else self.record + records
        return replace(self, row=self.row + rows, line=line, record=record)


class Problem(NamedTuple):
    """Reason why a record is no document."""

    expected: str
    found: str
    remedy: str | None = None
    """Another remedy than to fix the record."""


class BadDocument(NamedTuple):
    """A record that is no document: where it is, and what is wrong with it."""

    row: int
    place: Place
    problem: Problem
    record: int | None = None
    """With a transform: the ordinal of the record; None where the row says it."""


def no_place(row: int) -> Place:
    """Return the place of a record in a format without lines."""
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
        """Records that the rows are of: a transform may make several documents of one."""
        records = self.batch.records
        if records is None:
            return self.num_rows
        of_bad = np.array([of.record for of in self.bad], dtype=np.int64)
        return len(np.union1d(records, of_bad)) + len(self.left_out)

    def moved(self, rows: int, records: int) -> "ParsedBatch":
        """Return the same, without places, with `rows` and `records` added to its ordinals."""
        bad = tuple(
            of._replace(
                row=of.row + rows, record=None if of.record is None else of.record + records
            )
            for of in self.bad
        )
        batch = replace(self.batch, rows=self.batch.rows + rows)
        if batch.records is not None:
            batch = replace(batch, records=batch.records + records)
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

    Each record is one document, its columns joined, or each of its columns is one; a prompt is not
    in the loss. A document is bad that is among `problems`, by row, or has a column that is null,
    invalid UTF-8 or too large. `place` gives the place of a record, `num_chars` the Unicode code
    points of each column, where they are known to be text, `encoding` that of the file.
    """
    num_each = 1 if config.separator_of_columns is not None else len(columns)
    if num_each > 1:
        in_turn = np.arange(sum(map(len, columns))).reshape(len(columns), -1).T.ravel()
        columns = [pa.concat_arrays(columns).take(to_arrow(in_turn))]
        num_chars = None if num_chars is None else [np.stack(num_chars, axis=1).ravel()]
    rows = np.arange(len(columns[0]), dtype=np.int64)
    sizes = sum(np.diff(text_buffers(column)[0]) for column in columns)
    beyond = np.flatnonzero(sizes > config.limit.document_bytes).tolist()
    wrong = {row: too_large(config.limit) for row in beyond} | dict(problems or {})
    if num_chars is None:
        _add_invalid_text(columns, encoding, wrong)
    if wrong:
        is_good = ~np.isin(rows, list(wrong))
        rows = rows[is_good]
        columns = [column.filter(to_arrow(is_good)) for column in columns]
        num_chars = None if num_chars is None else [of_each[is_good] for of_each in num_chars]
    texts = [column.view(pa.large_string()) for column in columns]
    if num_chars is None:
        num_chars = [num_chars_of(column) for column in texts]
    bad = (BadDocument(row, place(row // num_each), wrong[row]) for row in sorted(wrong))
    batch = Batch(rows, texts[0], num_chars[0])
    if len(texts) > 1:
        batch = _joined(batch, texts, num_chars, config)
    return ParsedBatch(batch, tuple(bad), lambda row: place(row // num_each))


def _joined(
    first: Batch,
    columns: Sequence[pa.LargeStringArray],
    num_chars: Sequence[npt.NDArray[np.int64]],
    config: DocumentsConfig,
) -> Batch:
    """Return documents that are each the columns of a row; a prompt is not in the loss."""
    import pyarrow.compute as pc

    separator = config.separator_of_columns or ""
    texts = pc.binary_join_element_wise(*columns, texts_of([separator.encode()])[0])
    total = np.sum(num_chars, axis=0) + len(separator) * (len(columns) - 1)
    one_each = np.arange(len(first.rows) + 1, dtype=np.int64)
    spans = None if config.prompt is None else Spans(one_each, num_chars[0], total)
    return Batch(first.rows, texts, total, spans)


def all_bad(problem: Problem, places: Iterable[Place]) -> ParsedBatch:
    """Return records at these places that are all bad."""
    none = np.zeros(0, dtype=np.int64)
    bad = (BadDocument(row, place, problem) for row, place in enumerate(places))
    return ParsedBatch(Batch(none, texts_of([]), none), tuple(bad))


def num_chars_of(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the Unicode code points of each text."""
    import pyarrow.compute as pc  # 0.06 s that only reading needs

    return to_numpy(pc.utf8_length(texts))


def _add_invalid_text(
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
            problem = Problem("text", "null") if value is None else invalid_text(value, encoding)
            if problem is not None:
                problems.setdefault(row, problem)


def invalid_text(value: bytes, encoding: Encoding = "utf-8") -> Problem | None:
    """Return the problem of the first byte that is no character of an encoding, if there is one.
    The value is UTF-8, or of another encoding as `decoding` recodes it."""
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


def excerpt(value: object) -> str:
    """Return the value's repr, cut to about 60 characters."""
    head = value[:60] if isinstance(value, (str, bytes)) else value
    text = repr(head)
    return text if len(text) <= 60 and head == value else f"{text[:57]}..."


def are_messages(value: object) -> bool:
    """Return whether a value is a chat: a list of messages, each with a role and content."""
    messages = value if isinstance(value, list) else []
    return bool(messages) and all(
        isinstance(of, dict) and {"role", "content"} <= of.keys() for of in messages
    )


def value_json(value: Any, *, has_nested_bytes: bool = False) -> bytes:
    """Return the JSON of a value for a transform: bytes as text, times in ISO 8601, NaN and
    infinity as null. Of bytes that are no UTF-8 it is the bytes themselves, which `parse` finds."""
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


def has_nan(value: Any) -> bool:
    """Return whether a value is or holds NaN or infinity, which JSON cannot express."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_nan, value))

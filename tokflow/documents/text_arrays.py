"""Texts in an Arrow array: laid end to end, checked, counted."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents.batch import (
    BadDocument,
    Batch,
    ParsedBatch,
    Place,
    Problem,
    Spans,
    bad_document,
    shortened,
    too_large,
)
from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.store.arrow import texts_of, to_arrow, to_numpy


def found_in(
    array: pa.LargeBinaryArray, config: DocumentsConfig, *, first_row: int, place: Place
) -> ParsedBatch:
    """Return the documents of consecutive rows; null, invalid UTF-8 and too large ones are bad."""
    bad = _bad_documents([array], config.limit, first_row, place)
    rows = first_row + np.arange(len(array), dtype=np.int64)
    if bad:
        is_good = ~np.isin(rows, list(bad))
        rows, array = rows[is_good], array.filter(to_arrow(is_good))
    texts = array.view(pa.large_string())
    return ParsedBatch(Batch(rows, texts, num_chars_of(texts)), tuple(bad.values()))


def found_joined(
    columns: Sequence[pa.LargeBinaryArray],
    config: DocumentsConfig,
    *,
    first_row: int,
    place: Place,
) -> ParsedBatch:
    """Return the documents of consecutive rows, each the joined columns of one record.

    A record is bad where any of its columns is.
    """
    import pyarrow.compute as pc

    bad = _bad_documents(columns, config.limit, first_row, place)
    rows = first_row + np.arange(len(columns[0]), dtype=np.int64)
    if bad:
        is_good = ~np.isin(rows, list(bad))
        rows, kept = rows[is_good], to_arrow(is_good)
        columns = [column.filter(kept) for column in columns]
    separator = texts_of([(config.separator_of_columns or "").encode()])
    texts = pc.binary_join_element_wise(
        *(column.view(pa.large_string()) for column in columns), separator[0]
    )
    num_chars = num_chars_of(texts)
    spans = None
    if config.is_chat:
        first_chars = num_chars_of(columns[0].view(pa.large_string()))
        spans = completion_spans(first_chars, num_chars)
    return ParsedBatch(Batch(rows, texts, num_chars, spans), tuple(bad.values()))


def bad_alone(bad: Iterable[BadDocument]) -> ParsedBatch:
    """Return bad documents without any good ones."""
    none = np.zeros(0, dtype=np.int64)
    return ParsedBatch(Batch(none, texts_of([]), none), tuple(bad))


def too_large_alone(
    rows: Iterable[int], limit: Limit, place: tuple[int | None, int | None]
) -> ParsedBatch:
    """Return the documents of a line or piece that is not held, for it is too large."""
    line, byte_offset = place
    return bad_alone(
        bad_document(too_large(limit), row=row, line=line, byte_offset=byte_offset) for row in rows
    )


def completion_spans(
    prompt_chars: npt.NDArray[np.int64], num_chars: npt.NDArray[np.int64]
) -> Spans:
    """Return the spans of the completions, one for each document."""
    return Spans(np.arange(len(num_chars) + 1, dtype=np.int64), prompt_chars, num_chars)


def num_chars_of(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the Unicode code points of each text."""
    import pyarrow.compute as pc  # 0.06 s that only some readers need

    return to_numpy(pc.utf8_length(texts))


def ends_of(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the byte at which each text ends, counted from the first text's start."""
    offsets = np.frombuffer(
        texts.buffers()[1], np.int64, count=len(texts) + 1, offset=8 * texts.offset
    )
    ends: npt.NDArray[np.int64] = offsets[1:] - offsets[0]
    return ends


def invalid_utf8(value: bytes) -> str | None:
    """Return a description of the first byte of `value` that is no UTF-8, or None."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        around = value[max(0, error.start - 10) : error.start + 20]
        return f"{error.reason} at byte {error.start:,}, in {shortened(around)}"
    return None


def _bad_documents(
    columns: Sequence[pa.LargeBinaryArray], limit: Limit, first_row: int, place: Place
) -> dict[int, BadDocument]:
    """Return the bad documents by their rows, ascending; a document has a value of each column."""
    bad: dict[int, BadDocument] = {}
    beyond = _beyond(limit, columns)
    for index in sorted(beyond.union(*map(_suspects, columns))):
        problems = [too_large(limit)] if index in beyond else map(_problem, _values(columns, index))
        problem = next(filter(None, problems), None)
        if problem is None:
            continue
        line, byte_offset = place(index)
        row = first_row + index
        bad[row] = bad_document(problem, row=row, line=line, byte_offset=byte_offset)
    return bad


def _values(columns: Sequence[pa.LargeBinaryArray], index: int) -> Iterator[bytes | None]:
    return (column[index].as_py() for column in columns)


def _problem(value: bytes | None) -> Problem | None:
    """Return the problem of a value that is no text; None of a text."""
    if value is None:
        return "text", "null", None
    invalid = invalid_utf8(value)
    return None if invalid is None else ("valid UTF-8", invalid, None)


def _beyond(limit: Limit, columns: Sequence[pa.LargeBinaryArray]) -> set[int]:
    """Return which documents are too large."""
    if len(columns[0]) == 0:
        return set()
    ends = [ends_of(column) for column in columns]
    if sum(int(end[-1]) for end in ends) <= limit.document_bytes:
        return set()
    sizes = sum(np.diff(end, prepend=0) for end in ends)
    return set(np.flatnonzero(sizes > limit.document_bytes).tolist())


def _suspects(array: pa.LargeBinaryArray) -> Iterable[int]:
    """Return the null elements, or all elements if any is invalid UTF-8."""
    try:
        array.view(pa.large_string()).validate(full=True)
    except pa.ArrowInvalid:
        return range(len(array))
    if array.null_count == 0:
        return ()
    return np.flatnonzero(to_numpy(array.is_null())).tolist()

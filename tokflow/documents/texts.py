"""Texts in an Arrow array: laid end to end, checked, counted."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.arrays import texts_of, to_arrow, to_numpy
from tokflow.documents.contract import (
    BadDocument,
    Batch,
    DocumentsConfig,
    Found,
    Place,
    Spans,
    no_place,
    shortened,
)


def found_in(array: pa.LargeBinaryArray, *, first_row: int, place: Place) -> Found:
    """Return the documents of consecutive rows; null and invalid UTF-8 are bad."""
    bad = tuple(_bad_documents(array, first_row, place))
    rows = first_row + np.arange(len(array), dtype=np.int64)
    if bad:
        is_good = ~np.isin(rows, [document.row for document in bad])
        rows, array = rows[is_good], array.filter(to_arrow(is_good))
    texts = array.view(pa.large_string())
    return Found(Batch(rows, texts, num_chars_of(texts)), bad)


def found_joined(
    columns: Sequence[pa.LargeBinaryArray], config: DocumentsConfig, *, first_row: int
) -> Found:
    """Return the documents of consecutive rows, each the joined columns of one record.

    A record is bad where any of its columns is.
    """
    import pyarrow.compute as pc

    bad: dict[int, BadDocument] = {}
    for column in columns:
        for document in _bad_documents(column, first_row, no_place):
            bad.setdefault(document.row, document)
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
    return Found(Batch(rows, texts, num_chars, spans), tuple(bad[row] for row in sorted(bad)))


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
    array: pa.LargeBinaryArray, first_row: int, place: Place
) -> Iterator[BadDocument]:
    for index in _suspects(array):
        value: bytes | None = array[index].as_py()
        expected, found = "text", "null"
        if value is not None:
            invalid = invalid_utf8(value)
            if invalid is None:
                continue
            expected, found = "valid UTF-8", invalid
        line, byte_offset = place(index)
        yield BadDocument(
            row=first_row + index,
            line=line,
            byte_offset=byte_offset,
            expected=expected,
            found=found,
        )


def _suspects(array: pa.LargeBinaryArray) -> list[int]:
    """Return the null elements, or all elements if any is invalid UTF-8."""
    try:
        array.view(pa.large_string()).validate(full=True)
    except pa.ArrowInvalid:
        return list(range(len(array)))
    if array.null_count == 0:
        return []
    return [index for index, is_null in enumerate(array.is_null().to_pylist()) if is_null]

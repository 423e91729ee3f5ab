"""The columns of the formats with one record per sequence, by the names trainers know.

input_ids       list<int32>
attention_mask  list<int8>   1 at tokens, 0 at padding
segment_ids     list<int32>  1, 2, ... in each row; 0 is padding
position_ids    list<int32>  0 at each segment's first token
loss_mask       list<int8>   1 at tokens that are learnt, 0 at others and at padding
labels          list<int32>  the token where loss_mask is 1, else -100, which torch's
                             cross_entropy ignores; not shifted, for trainers shift
seq_lengths     list<int32>  tokens of each segment, padding not among them
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.arrays import to_arrow, to_numpy
from tokflow.exports.formats import Arrays
from tokflow.sequences import Sequences

TYPES = {
    "input_ids": pa.int32(),
    "attention_mask": pa.int8(),
    "segment_ids": pa.int32(),
    "position_ids": pa.int32(),
    "loss_mask": pa.int8(),
    "labels": pa.int32(),
    "seq_lengths": pa.int32(),
}

NO_LABEL = -100
"""What a label is where nothing is learnt."""


def schema_of(names: Iterable[str]) -> pa.Schema:
    """Return the schema of a table with these columns."""
    return pa.schema([pa.field(name, pa.list_(TYPES[name])) for name in names])


def make_columns(rows: Sequences, schema: pa.Schema, *, padding: bool = True) -> pa.Table:
    """Return the columns of `schema`; without `padding` each list ends at its last token."""
    is_token = None if padding else rows.segment_ids != 0
    return pa.Table.from_arrays(
        [_column(rows, name, is_token) for name in schema.names], schema=schema
    )


def values_of(rows: Sequences, name: str) -> npt.NDArray[Any]:
    """Return a column that has a value for each token; shape (num_sequences, sequence_length)."""
    values: npt.NDArray[Any]
    if name == "labels":
        values = np.where(rows.loss_mask, rows.token_ids.astype(np.int32), np.int32(NO_LABEL))
    elif name == "attention_mask":
        values = rows.segment_ids != 0
    else:
        values = getattr(rows, "token_ids" if name == "input_ids" else name)
    return values.astype(TYPES[name].to_pandas_dtype(), copy=False)


def segment_lengths(rows: Sequences) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return the tokens of each segment of all rows end to end, and the segments of each row."""
    segment_ids = rows.segment_ids
    is_token = segment_ids != 0
    is_start = is_token.copy()
    is_start[:, 1:] &= segment_ids[:, 1:] != segment_ids[:, :-1]
    starts = np.flatnonzero(is_start[is_token])
    lengths = np.diff(starts, append=np.count_nonzero(is_token)).astype(np.int32)
    return lengths, np.count_nonzero(is_start, axis=1)


def _column(rows: Sequences, name: str, is_token: npt.NDArray[np.bool_] | None) -> pa.ListArray:
    if name == "seq_lengths":
        values, num_values = segment_lengths(rows)
    elif is_token is not None:
        values, num_values = values_of(rows, name)[is_token], np.count_nonzero(is_token, axis=1)
    else:
        values = values_of(rows, name).ravel()
        num_values = np.full(len(rows), rows.token_ids.shape[1])
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(num_values, out=offsets[1:])
    return pa.ListArray.from_arrays(to_arrow(offsets), to_arrow(values))


def files_of(
    batches: Iterable[Sequences], per_file: int
) -> Iterator[tuple[int, Iterator[Sequences]]]:
    """Yield the ordinal of each file and the rows that go into it, `per_file` in all.

    The rows of one file must be taken before the next file is. What is written at once depends
    on the batches alone: a batch is cut only where a file ends.
    """
    for number, pieces in groupby(_cut(batches, per_file), key=itemgetter(0)):
        yield number, (rows for _, rows in pieces)


def _cut(batches: Iterable[Sequences], per_file: int) -> Iterator[tuple[int, Sequences]]:
    num_rows = 0
    for rest in batches:
        while len(rest):
            number, num_in_file = divmod(num_rows, per_file)
            some, rest = rest[: per_file - num_in_file], rest[per_file - num_in_file :]
            num_rows += len(some)
            yield number, some


def read_columns(
    tables: Sequence[pa.Table], *, sequence_length: int, dtype: str, pad_id: int
) -> Arrays:
    """Return the fields of `Sequences` from what the tables hold of them, in memory.

    Each has the shape (num_sequences, sequence_length), rows without padding are filled again.
    What is not there is worked out: position_ids from segment_ids, those from seq_lengths;
    loss_mask from labels or, where every token is learnt, from attention_mask or segment_ids. A
    field that nothing tells of is left out.
    """
    lists = {name: _flat(tables, name) for name in (tables[0].schema.names if tables else TYPES)}
    return fields_from(lists, sequence_length=sequence_length, dtype=dtype, pad_id=pad_id)


Lists = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Values of lists end to end, and how many each list has."""


def _flat(tables: Sequence[pa.Table], name: str) -> Lists:
    chunks = [chunk for table in tables for chunk in table[name].chunks]
    values = [to_numpy(chunk.flatten()) for chunk in chunks]
    num_values = [np.diff(to_numpy(chunk.offsets)).astype(np.int64) for chunk in chunks]
    return (
        np.concatenate([np.zeros(0, TYPES[name].to_pandas_dtype()), *values]),
        np.concatenate([np.zeros(0, np.int64), *num_values]),
    )


def fields_from(
    lists: Mapping[str, Lists], *, sequence_length: int, dtype: str, pad_id: int
) -> Arrays:
    """Return the fields that the lists of each column tell of; see `read_columns`."""

    def filled(name: str, fill: int) -> npt.NDArray[Any] | None:
        if name not in lists:
            return None
        values, num_values = lists[name]
        out = np.full((len(num_values), sequence_length), fill, dtype=values.dtype)
        out[np.arange(sequence_length) < num_values[:, None]] = values
        return out

    token_ids = filled("input_ids", pad_id)
    segment_ids = filled("segment_ids", 0)
    if segment_ids is None and "seq_lengths" in lists:
        segment_ids = _segments_of(*lists["seq_lengths"], sequence_length)
    position_ids = filled("position_ids", 0)
    if position_ids is None and segment_ids is not None:
        position_ids = _positions_of(segment_ids)
    found = {
        "token_ids": None if token_ids is None else token_ids.astype(dtype),
        "segment_ids": segment_ids,
        "position_ids": position_ids,
        "loss_mask": _loss_mask_of(
            filled("loss_mask", 0), filled("labels", NO_LABEL), filled("attention_mask", 0),
            segment_ids,
        ),
    }  # fmt: skip
    return {name: values for name, values in found.items() if values is not None}


def _segments_of(
    lengths: npt.NDArray[Any], num_segments: npt.NDArray[np.int64], sequence_length: int
) -> npt.NDArray[np.int32]:
    row = np.repeat(np.arange(len(num_segments)), num_segments)
    first = np.cumsum(num_segments) - num_segments
    ordinal = np.arange(len(lengths)) - first[row] + 1
    num_tokens = np.bincount(row, weights=lengths, minlength=len(num_segments))
    out = np.zeros((len(num_segments), sequence_length), dtype=np.int32)
    out[np.arange(sequence_length) < num_tokens[:, None]] = np.repeat(ordinal, lengths)
    return out


def _positions_of(segment_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    is_start = np.diff(segment_ids, axis=1, prepend=-1) != 0
    column = np.arange(segment_ids.shape[1], dtype=np.int32)
    start = np.maximum.accumulate(np.where(is_start, column, 0), axis=1)
    return np.where(segment_ids != 0, column - start, 0).astype(np.int32)


def _loss_mask_of(
    loss_mask: npt.NDArray[Any] | None,
    labels: npt.NDArray[Any] | None,
    attention_mask: npt.NDArray[Any] | None,
    segment_ids: npt.NDArray[Any] | None,
) -> npt.NDArray[np.bool_] | None:
    for values, none in ((loss_mask, 0), (labels, NO_LABEL), (attention_mask, 0), (segment_ids, 0)):
        if values is not None:
            is_learnt: npt.NDArray[np.bool_] = values != none
            return is_learnt
    return None

"""The columns of the formats with one record per sequence, by the names trainers know.

input_ids       list<int32>
attention_mask  list<int8>   1 at tokens, 0 at padding
segment_ids     list<int32>  1, 2, ... in each sequence; 0 is padding
position_ids    list<int32>  0 at each segment's first token
loss_mask       list<int8>   1 at loss tokens, 0 at others and at padding
labels          list<int32>  the token where loss_mask is 1, else -100, which torch's
                             cross_entropy ignores; not shifted, for trainers shift, and so -100 at
                             each segment's first token, which the segment before must not predict
next_loss_mask  list<int8>   1 where the next token of the same segment is a loss token
seq_lengths     list<int32>  tokens of each segment, padding not among them
seq_start_id    list<int32>  position of each segment's first token
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.format import Arrays, Layout
from tokflow.exports.options import Padding
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.sequences import Side
from tokflow.sequences.segments import Sequences, fill_sequences
from tokflow.store.tables import offsets_of, to_arrow

TYPES = {
    "input_ids": pa.int32(),
    "attention_mask": pa.int8(),
    "segment_ids": pa.int32(),
    "position_ids": pa.int32(),
    "loss_mask": pa.int8(),
    "labels": pa.int32(),
    "next_loss_mask": pa.int8(),
    "seq_lengths": pa.int32(),
    "seq_start_id": pa.int32(),
}

OF_IDS = ("input_ids", "labels")
"""Columns of token ids."""

OF_LOSS = ("loss_mask", "labels", "next_loss_mask")
"""Columns that tell loss tokens: the first all of them, the others none that begins a segment."""

LABELS_VERSION = 1
"""Raised when labels of the same sequences would be other ones."""

STARTS = ("seq_lengths", "seq_start_id")
"""Columns with a value for each segment, which tell nothing of padding."""

TOLD_BY = {
    "token_ids": ("input_ids",),
    "segment_ids": ("segment_ids", *STARTS),
    "position_ids": ("position_ids", "segment_ids", *STARTS),
    "loss_mask": (*OF_LOSS, "segment_ids", *STARTS, "attention_mask"),
}
"""The columns that tell each field: of those there are, the first. Of the loss mask segments tell
that every token is a loss token."""

NO_LABEL = -100
"""The label of what is no loss token."""

ALL_POSITIONS = slice(None)
"""Every position of a sequence, padding included."""

Lists = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Values of lists end to end, and how many each list has."""


def layout_of_columns(options: Any) -> Layout:
    """Return which fields can be told from input_ids and the columns of options."""
    columns = ("input_ids", *options.columns)
    keeps = tuple(name for name, by in TOLD_BY.items() if {*by} & {*columns})
    return Layout(made_of="sequences", keeps=keeps, columns=columns)


def columns_in_files(options: Any, *, is_chats: bool) -> tuple[str, ...]:
    """Return input_ids and the columns of options, and the mask of chats if nothing else tells of
    it."""
    layout = layout_of_columns(options)
    told = "loss_mask" not in layout.keeps or {*OF_LOSS} & {*layout.columns}
    return layout.columns if told or not is_chats else (*layout.columns, options.mask_column)


def has_first_loss(export: Export, part: str) -> bool:
    """Return whether the loss mask of a part, as it is read, has loss tokens that begin a segment:
    not where it is made of labels, since no token of the segment predicts that one."""
    if not export.layout.columns:
        return True
    names = columns_in_files(export.options, is_chats=export.has_loss_mask(part))
    return next((name for name in OF_LOSS if name in names), OF_LOSS[0]) == OF_LOSS[0]


def schema_of(names: Iterable[str], kept: Iterable[str] = ()) -> pa.Schema:
    """Return the schema of a table with these columns, and those that are `kept` of documents."""
    lists = [pa.field(name, pa.list_(TYPES[name])) for name in names]
    return pa.schema([*lists, *(pa.field(name, pa.string()) for name in kept)])


def written_positions(part: Part, padding: Padding) -> slice | None:
    """Return which positions of each sequence of a part are written; None: those of its tokens."""
    if padding == "none":
        return None
    if padding == "max":
        return ALL_POSITIONS
    length, side = part.sequence_length, part.packed.packing.padding_side
    return _filled_positions(part.packed.longest, length, side)


def _filled_positions(num: int, length: int, side: Side) -> slice:
    return slice(length - num, length) if side == "left" else slice(num)


def num_written_padding(part: Part, padding: Padding, num_tokens: int) -> int:
    """Return how much padding the files have of a part, besides so many tokens."""
    written = written_positions(part, padding)
    if written is None:
        return 0
    return part.num_sequences * len(range(part.sequence_length)[written]) - num_tokens


def positions_in_files(export: Export, part: str) -> slice | None:
    """Return which positions of each sequence are in the files of an export, as
    `written_positions` does."""
    if getattr(export.options, "padding", "max") == "none":
        return None
    details, counts = export.of_part(part).manifest.details, export.counts
    num_written = counts[f"{part}.num_tokens"] + counts[f"{part}.num_padding"]
    num_columns = num_written // max(counts[f"{part}.num_sequences"], 1)
    return _filled_positions(
        num_columns, details["sequence_length"], details.get("padding_side", "right")
    )


def make_columns(
    sequences: Sequences, names: Iterable[str], written: slice | None = ALL_POSITIONS
) -> list[pa.ListArray]:
    """Return columns, of each sequence the positions that are `written`."""
    columns = []
    for name in names:
        values, num_values = lists_of(sequences, name, written)
        offsets = offsets_of(num_values).astype(np.int32)
        columns.append(pa.ListArray.from_arrays(to_arrow(offsets), to_arrow(values)))
    return columns


def lists_of(sequences: Sequences, name: str, written: slice | None = ALL_POSITIONS) -> Lists:
    """Return a column: for each sequence a list of the positions that are `written`, or where that
    is None of its tokens."""
    is_token = sequences.segment_ids != 0
    if name in STARTS:
        return _segments(sequences.segment_ids, is_token, name)
    values: npt.NDArray[Any]
    if name in ("labels", "next_loss_mask"):
        is_label = sequences.loss_mask & (sequences.position_ids != 0)
        if name == "labels":
            token_ids = sequences.token_ids.astype(np.int32)
            values = np.where(is_label, token_ids, np.int32(NO_LABEL))
        else:
            values = np.pad(is_label[:, 1:], ((0, 0), (0, 1)))
    elif name == "attention_mask":
        values = is_token
    else:
        values = getattr(sequences, "token_ids" if name == "input_ids" else name)
    values = values.astype(str(TYPES[name]), copy=False)
    if written is None:
        return values[is_token], np.count_nonzero(is_token, axis=1)
    values = values[:, written]
    return values.ravel(), np.full(len(values), values.shape[1])


def _segments(
    segment_ids: npt.NDArray[np.int32], is_token: npt.NDArray[np.bool_], name: str
) -> Lists:
    is_start = is_token.copy()
    is_start[:, 1:] &= segment_ids[:, 1:] != segment_ids[:, :-1]
    num_segments = np.count_nonzero(is_start, axis=1)
    starts = np.flatnonzero(is_start[is_token])
    if name == "seq_lengths":
        values = np.diff(starts, append=np.count_nonzero(is_token))
    else:
        firsts = offsets_of(np.count_nonzero(is_token, axis=1))[:-1]
        values = starts - np.repeat(firsts, num_segments)
    return values.astype(np.int32), num_segments


def columns_read(names: Iterable[str], keeps: Iterable[str]) -> list[str]:
    """Return which columns of a file `fields_of` needs for the fields that an export keeps: of
    those that tell a field the first that there is."""
    own = {*names}
    found = [next((column for column in TOLD_BY[name] if column in own), None) for name in keeps]
    if "seq_start_id" in found:
        found.append("input_ids")  # which tells where the last segment ends
    return [name for name in TYPES if name in found]


def fields_of(lists: Mapping[str, Lists], export: Export) -> Arrays:
    """Return the fields of `Sequences` that the export keeps, as `Portion.read` has them.

    Each has the shape (num_sequences, sequence_length); lists that end at their last token are
    filled again. What has no column of its own is worked out: segment_ids from seq_lengths;
    position_ids from segment_ids; loss_mask from labels or next_loss_mask, False at the first token
    of each segment then, or, where every token is a loss token and nothing else tells the padding,
    from attention_mask. Nothing is copied where all
    of that has columns, and lists are of one length.
    """
    details = export.manifest.details
    filled = partial(_filled, lists, details)
    segment_ids = filled("segment_ids", 0)
    if segment_ids is None and {*STARTS} & {*lists}:
        segment_ids = _segment_ids_of(lists, details)
    position_ids = filled("position_ids", 0)
    is_asked = "position_ids" in details["keeps"]
    if is_asked and position_ids is None and segment_ids is not None:
        position_ids = positions_of(segment_ids)
    found = {
        "token_ids": filled("input_ids", details["pad_id"]),
        "segment_ids": segment_ids,
        "position_ids": position_ids,
        "loss_mask": _loss_mask_of(filled, segment_ids),
    }
    fields = {name: values for name in details["keeps"] if (values := found[name]) is not None}
    # loss_mask is not there where every token is a loss token.
    if lacking := {*details["keeps"]} - {*fields, "loss_mask"}:
        raise KeyError(f"columns that tell {', '.join(lacking)}")
    return fields


def _filled(
    lists: Mapping[str, Lists], details: Mapping[str, Any], name: str, fill: int
) -> npt.NDArray[Any] | None:
    """Return a column as rows of one length; None where there is no such column."""
    if name not in lists:
        return None
    length, (values, num_values) = details["sequence_length"], lists[name]
    if len(values) == len(num_values) * length:
        return values.reshape(-1, length)
    out = np.full((len(num_values), length), fill, dtype=values.dtype)
    is_told = np.arange(length) < num_values[:, None]
    out[is_told[:, ::-1] if details.get("padding_side") == "left" else is_told] = values
    return out


def _segment_ids_of(
    lists: Mapping[str, Lists], details: Mapping[str, Any]
) -> npt.NDArray[np.int32]:
    """Return the segment_ids that seq_lengths, or seq_start_id and input_ids, tell."""
    if "seq_lengths" in lists:
        lengths, num_segments = lists["seq_lengths"]
    else:
        (starts, num_segments), (_, num_tokens) = lists["seq_start_id"], lists["input_ids"]
        firsts = starts + np.repeat(offsets_of(num_tokens)[:-1], num_segments)
        lengths = np.diff(firsts, append=num_tokens.sum())
    return fill_sequences(
        np.zeros(int(lengths.sum()), dtype=np.uint16),
        np.repeat(np.arange(len(num_segments)), num_segments),
        lengths,
        sequence_length=details["sequence_length"],
        pad_id=0,
        padding_side=details.get("padding_side", "right"),
    ).segment_ids


def positions_of(segment_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return position_ids, which count from 0 in each segment; 0 is padding."""
    is_start = np.ones(segment_ids.shape, dtype=np.bool_)
    np.not_equal(segment_ids[:, 1:], segment_ids[:, :-1], out=is_start[:, 1:])
    starts = np.flatnonzero(is_start)
    positions = np.arange(segment_ids.size, dtype=np.int32)
    positions -= np.repeat(starts.astype(np.int32), np.diff(starts, append=segment_ids.size))
    return np.where(segment_ids != 0, positions.reshape(segment_ids.shape), np.int32(0))


def _loss_mask_of(
    filled: Callable[[str, int], npt.NDArray[Any] | None], segment_ids: npt.NDArray[Any] | None
) -> npt.NDArray[np.bool_] | None:
    loss_mask = filled("loss_mask", 0)
    if loss_mask is None and (labels := filled("labels", NO_LABEL)) is not None:
        is_loss_token: npt.NDArray[np.bool_] = labels != NO_LABEL
        return is_loss_token
    if loss_mask is None and (of_next := filled("next_loss_mask", 0)) is not None:
        return np.pad(of_next[:, :-1], ((0, 0), (1, 0))).view(np.bool_)
    if loss_mask is None and segment_ids is None:
        loss_mask = filled("attention_mask", 0)
    return None if loss_mask is None else loss_mask.view(np.bool_)

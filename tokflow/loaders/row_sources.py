"""Sources of rows: those of an export as they were packed, and those cut from a stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError
from tokflow.exports import Arrays, Export
from tokflow.exports.columns import NO_LABEL, positions_of
from tokflow.exports.index import read_sizes
from tokflow.loaders.opening import (
    KeptPortions,
    OpenedRows,
    Opening,
    lost,
    open_stream,
    packed_portions,
)
from tokflow.loaders.samples import Batch, FilesOf, Numbers, copied, empty, grouped
from tokflow.sequences import PackingConfig
from tokflow.tokens import positions_of_runs


def open_packed_rows(opening: Opening) -> "PackedRows":
    """Return the rows of an export of sequences. Raises: ConfigError, CorruptOutputError."""
    output, part = opening.output, opening.part or ""
    output.store.look_for([output.folder])  # this may be another process than opened it first
    output.store.check(output)
    export = Export(output).of_part(part)
    keeps = export.layout.keeps
    if opening.across_documents is False and "segment_ids" not in keeps:
        raise lost("across_documents", export, ["segment_ids"])
    stored_length = int(export.manifest.details["sequence_length"])
    packing = PackingConfig(**export.manifest.recipe.config["packing"])
    length = stored_length - packing.of_part(part).label_token
    _check_cut(opening, export, length)
    is_padded_left = export.manifest.details.get("padding_side") == "left"
    sizes, num_tokens = _sizes(export, part, length, is_padded_left=is_padded_left)
    fields = opening.fields_of(export, keeps)
    needs = {"token_ids"} | ({"segment_ids", "position_ids"} & {*fields})
    if {"labels", "loss_mask"} & {*fields}:
        needs |= {"segment_ids", "loss_mask"}
    if "position_ids" in needs and "position_ids" not in keeps:
        needs.add("segment_ids")
    return PackedRows(
        opening=opening,
        stored=export.stored,
        fields=fields,
        needs=frozenset(needs),
        sequence_length=length,
        stored_length=stored_length,
        across_documents=opening.across_documents is True,
        num_tokens=num_tokens,
        sizes=sizes,
        is_padded_left=is_padded_left,
        portions=KeptPortions(packed_portions(export.with_fields(needs), part)),
    )


def _sizes(
    export: Export, part: str, length: int, *, is_padded_left: bool
) -> tuple[npt.NDArray[np.int32] | None, int]:
    """Return the tokens of each row, where nothing else tells them from padding; and those of all
    rows, of which a last one that is a label alone is none."""
    keeps, num_tokens = export.layout.keeps, export.counts[f"{part}.num_tokens"]
    num_rows = export.counts[f"{part}.num_sequences"]
    stored: int = export.manifest.details["sequence_length"]
    is_full = num_tokens == num_rows * stored
    is_told = is_full or "segment_ids" in keeps or ("loss_mask" in keeps and not is_padded_left)
    if is_told and (is_full or is_padded_left or stored == length):
        return None, num_tokens - num_rows * (stored - length)
    sizes = read_sizes(export.stored, part, num_rows, stored)
    num_labels = np.count_nonzero(sizes == stored) if not is_padded_left else num_rows
    return None if is_told else sizes, num_tokens - int(num_labels) * (stored - length)


def _check_cut(opening: Opening, export: Export, length: int) -> None:
    """Make sure that rows are asked for as they were packed. Raises: ConfigError."""
    packed = f"rows of {export.format_name}, which were packed"
    if opening.sequence_length not in (None, length):
        where, expected = "sequence_length", f"{length:,}, the inputs of {packed}"
        remedy = (
            "leave it out; or open an export of a stream (bin, npy, megatron), which is cut into "
            "rows of any length; or pack rows of another"
        )
    elif opening.tail != "pad":
        where, expected = "tail", f"none for {packed}"
        remedy = "leave it out; packing has a `tail:` of its own"
    else:
        return
    found = repr(getattr(opening, where))
    raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows(OpenedRows):
    """A row of L tokens has L inputs and no label for its last; where the packing has a label token
    it has L - 1 inputs, and a label for each. A label is of the same segment as its input.

    Of a row of two documents and padding:

        token_ids    [a b c d . .]    segment_ids  [1 1 2 2 0 0]
        labels       [b x d x x x]    x is -100

    Where the export has lost the segments, labels go on from one document to the next.
    """

    needs: frozenset[str]
    """Fields of the export that those of rows are made from."""
    stored_length: int
    """L"""
    num_tokens: int
    sizes: npt.NDArray[np.int32] | None = field(repr=False, compare=False)
    """Tokens of each row, where nothing else tells them from padding."""
    is_padded_left: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return open_packed_rows, (self.opening,)

    def __len__(self) -> int:
        return int(self.portions.edges[-1])

    def gather(self, numbers: Numbers) -> Batch:
        """Return the rows of these numbers; see `OpenedRows`."""
        length = self.sequence_length
        self.portions.fetch(numbers)
        stored = self._taken(numbers)
        batch: Batch = {
            "input_ids": copied(stored["token_ids"][:, :length], np.int64),
            "index": numbers.copy(),
        }
        if {"labels", "loss_mask"} & {*self.fields}:
            batch["labels"], batch["loss_mask"] = self._labels(stored, numbers)
        for name in {"segment_ids", "position_ids"} & {*self.fields}:
            values = stored[name] if name in stored else positions_of(stored["segment_ids"])
            batch[name] = copied(values[:, :length], np.int32)
        return {name: batch[name] for name in self.fields}

    def remote_files(self) -> FilesOf | None:
        """Return what tells the files of rows at a URL; None where all are on this disk."""
        return self.portions.files_of if self.portions.is_remote else None

    def _taken(self, numbers: Numbers) -> Arrays:
        """Return the fields of rows that are needed as they are stored, (num_rows, L) each."""
        taken: Arrays = {}
        # A portion that has to be decoded is decoded once.
        for number, here in grouped(self.portions.of(numbers)):
            rows = numbers[here] - self.portions.edges[number]
            fields = self.portions[number]
            for name in fields.keys() & self.needs:
                if name not in taken:
                    taken[name] = empty((len(numbers), self.stored_length), fields[name].dtype)
                self.portions.expect(number, fields[name], rows, 1)
                taken[name][here] = fields[name][rows]
        none = np.empty((0, self.stored_length), np.int32)
        return taken or dict.fromkeys(("token_ids", "segment_ids", "position_ids"), none)

    def _labels(
        self, stored: Arrays, numbers: Numbers
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the labels, and which of them count."""
        shape, last = (len(numbers), self.sequence_length), self.stored_length - 1
        labels, counts = empty(shape, np.int64), empty(shape, np.bool_)
        labels.fill(NO_LABEL)
        counts.fill(False)
        # Whether each stored token but the first is the label of the one before it.
        found = np.ones((len(numbers), last), dtype=np.bool_)
        if "segment_ids" in stored:
            before, behind = stored["segment_ids"][:, :-1], stored["segment_ids"][:, 1:]
            found &= behind != 0
            found &= before != 0 if self.across_documents else before == behind
        elif self.sizes is not None:
            column, sizes = np.arange(1, self.stored_length), self.sizes[numbers, None]
            found &= column > self.stored_length - sizes if self.is_padded_left else column < sizes
        if "loss_mask" in stored:
            found &= stored["loss_mask"][:, 1:]
        counts[:, :last] = found
        np.copyto(labels[:, :last], stored["token_ids"][:, 1:], where=found)
        return labels, counts


def open_stream_rows(opening: Opening) -> "StreamRows":
    """Return the rows of a stream. Raises: ConfigError, CorruptOutputError."""
    stream = open_stream(opening.output, opening.part)
    across, length = opening.across_documents is not False, opening.sequence_length
    if length is None or length < 1:
        raise ConfigError(
            where="sequence_length",
            expected="how many tokens a row has, for a stream is cut into rows of any length",
            found=repr(length),
            remedy="name it: `sequence_length=2048`",
        )
    if not across and "offsets" not in stream.keeps:
        raise lost("across_documents", stream.output, ["offsets"])
    return StreamRows(
        opening=opening,
        stored=stream.output,
        fields=opening.fields_of(stream.output, stream.keeps),
        sequence_length=length,
        across_documents=across,
        has_loss_mask=stream.has_loss_mask,
        pad_id=stream.output.manifest.details["eos_id"] or 0,
        portions=KeptPortions(stream.portions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRows(OpenedRows):
    """Row i has the inputs i * T to i * T + T and, as labels, the token behind each.

    Of the tokens a b c d e f, in rows of 4:

        input_ids    [a b c d]  [e . . .]
        labels       [b c d e]  [f x x x]    x is -100

    The label of a row's last input is the first of the next row, so that every token but the first
    is a label once, and every token but the last an input once. A document that the edge of a row
    cuts begins a new segment, at position 0.
    """

    has_loss_mask: bool
    """Whether labels count only where a loss mask is set: in chats."""
    pad_id: int

    def __reduce__(self) -> tuple[Any, ...]:
        return open_stream_rows, (self.opening,)

    def __len__(self) -> int:
        num_rows, rest = divmod(self._num_pairs, self.sequence_length)
        return num_rows + (rest > 0 and self.opening.tail == "pad")

    @property
    def num_tokens(self) -> int:
        """Tokens in all rows, padding left out."""
        return min(self._num_pairs, len(self) * self.sequence_length)

    @property
    def cut(self) -> Mapping[str, Any]:
        """The arguments that decide the rows; see `OpenedRows`."""
        across = {"across_documents": self.across_documents}
        return {"sequence_length": self.sequence_length, "tail": self.opening.tail, **across}

    @property
    def num_windows(self) -> int:
        """Positions that T inputs and a label for each may begin at: N - T, or 0."""
        return max(0, self._num_pairs + 1 - self.sequence_length)

    @property
    def _num_pairs(self) -> int:
        """Tokens of the stream that one stands behind."""
        return max(0, int(self.portions.edges[-1]) - 1)

    def gather(self, numbers: Numbers) -> Batch:
        """Return the rows of these numbers; see `OpenedRows`."""
        return self._batch(numbers * self.sequence_length, numbers)

    def windows(self, positions: Numbers) -> Batch:
        """Return T inputs from each position on, from 0 to `num_windows`; `index` is the position.
        All have labels, except those that the edge of a document takes away."""
        return self._batch(positions, positions)

    def remote_files(self) -> FilesOf | None:
        """Return what tells the files of rows at a URL; None where all are on this disk."""
        if not self.portions.is_remote:
            return None
        return lambda numbers: self.portions.files_of(self._ends(numbers * self.sequence_length))

    def _ends(self, starts: Numbers) -> Numbers:
        """Return the first and the last positions of rows, which lie in one portion or two."""
        return np.concatenate([starts, starts + self.sequence_length])

    def _batch(self, starts: Numbers, index: Numbers) -> Batch:
        length = self.sequence_length
        self.portions.fetch(self._ends(starts))
        token_ids = self._taken("token_ids", starts)
        batch: Batch = {"input_ids": copied(token_ids[:, :-1], np.int64), "index": index.copy()}
        begins = self._begins(starts)
        if {"segment_ids", "position_ids"} & {*self.fields}:
            batch |= segments(*begins, num_rows=len(starts), length=length)
        is_labelled = bool({"labels", "loss_mask"} & {*self.fields})
        if is_labelled:
            batch["labels"] = copied(token_ids[:, 1:], np.int64)
            batch["loss_mask"] = self._loss_mask(starts, begins)
        sizes = self._num_pairs - starts
        fills = {"input_ids": self.pad_id, "segment_ids": 0, "position_ids": 0, "loss_mask": False}
        for row in np.flatnonzero(sizes < length).tolist():
            for name in fills.keys() & batch.keys():
                batch[name][row, sizes[row] :] = fills[name]
        if is_labelled and not batch["loss_mask"].all():
            np.copyto(batch["labels"], NO_LABEL, where=~batch["loss_mask"])
        return {name: batch[name] for name in self.fields}

    def _taken(self, name: str, starts: Numbers) -> npt.NDArray[Any]:
        """Return a field at each position of rows and at the one behind, (num_rows, T + 1); behind
        the end of the stream it is anything."""
        num, taken = self.sequence_length + 1, np.empty((0, self.sequence_length + 1), np.int64)
        # By portion, so that one that has to be decoded is decoded once.
        for number, here in grouped(self.portions.of(starts)):
            values = self.portions[number][name]
            begins = starts[here] - self.portions.edges[number]
            self.portions.expect(number, values, begins, num)
            is_whole = begins <= len(values) - num
            if is_whole.all() and len(here) == len(starts):
                return _windows(values, num, begins)
            taken = taken if len(taken) else empty((len(starts), num), values.dtype)
            if is_whole.any():
                taken[here[is_whole]] = _windows(values, num, begins[is_whole])
            for row, begin in zip(here[~is_whole], begins[~is_whole], strict=True):
                size = len(values) - begin
                taken[row, :size] = values[begin:]
                self._fill(name, taken[row, size:], number + 1)
        return taken

    def _fill(self, name: str, rest: npt.NDArray[Any], number: int) -> None:
        """Copy a field from the beginning of a portion on, as far as there is some."""
        while len(rest) and number < len(self.portions.edges) - 1:
            here = self.portions[number][name][: len(rest)]
            rest[: len(here)] = here
            rest, number = rest[len(here) :], number + 1

    def _loss_mask(self, starts: Numbers, begins: tuple[Numbers, Numbers]) -> npt.NDArray[np.bool_]:
        """Return which labels count, the end of the stream left aside."""
        counts = empty((len(starts), self.sequence_length), np.bool_)
        if self.has_loss_mask:
            counts[:] = self._taken("loss_mask", starts)[:, 1:]  # of int64 where there is no row
        else:
            counts.fill(True)
        if not self.across_documents:
            rows, columns = begins
            counts[rows, columns - 1] = False
        return counts

    def _begins(self, starts: Numbers) -> tuple[Numbers, Numbers]:
        """Return the row and the column, from 1 to T, of each token that begins a document within
        a row or as the label of its last input, in order; none where nobody asks."""
        places, found = self.sequence_length + 1, [np.zeros(0, dtype=np.int64)]
        if self.across_documents and not {"segment_ids", "position_ids"} & {*self.fields}:
            return found[0], found[0]
        first, last = self.portions.of(starts), self.portions.of(starts + places - 1)
        last = np.minimum(last, len(self.portions.edges) - 2)  # of the end of the stream
        rows = np.repeat(np.arange(len(starts)), last - first + 1)
        for number, here in grouped(positions_of_runs(first, last - first + 1)):
            offsets = self.portions[number]["offsets"][:-1]
            begin = starts[rows[here]] - self.portions.edges[number]
            lower, upper = offsets.searchsorted(begin + 1), offsets.searchsorted(begin + places)
            keys = rows[here] * places - begin
            runs = zip(lower.tolist(), upper.tolist(), keys.tolist(), strict=True)
            found += [offsets[a:b] + key for a, b, key in runs]
        return np.divmod(np.unique(np.concatenate(found)), places)


def _windows(values: npt.NDArray[Any], num: int, begins: Numbers) -> npt.NDArray[Any]:
    """Return `num` values from each of these positions on.

    numpy copies them all at once, without Python and its lock: 64 rows of 2,048 tokens in 70 us
    where a loop takes 250, and threads beside it go on.
    """
    windows: npt.NDArray[Any] = np.lib.stride_tricks.sliding_window_view(values, num)[begins]
    return windows


def segments(rows: Numbers, columns: Numbers, *, num_rows: int, length: int) -> Batch:
    """Return segment_ids and position_ids of rows, given where segments begin besides column 0.

    For a row of 5 with one at column 2: [1 1 2 2 2] and [0 1 0 1 2].
    """
    is_inside = columns < length
    of_rows = np.arange(num_rows) * length
    begins = np.sort(np.concatenate([of_rows, (rows * length + columns)[is_inside]]))
    sizes = np.diff(begins, append=num_rows * length)
    ids = np.arange(1, len(begins) + 1) - np.searchsorted(begins, of_rows)[begins // length]
    positions = np.arange(num_rows * length, dtype=np.int32)
    positions -= np.repeat(begins.astype(np.int32), sizes)
    return {
        "segment_ids": np.repeat(ids.astype(np.int32), sizes).reshape(num_rows, length),
        "position_ids": positions.reshape(num_rows, length),
    }

"""The sequences of one part over all files: those of each file, then those made of all tails."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.index import index_tables
from tokflow.packing import PACKERS, PackingConfig, Segments
from tokflow.sequences import SEGMENTS_COLUMNS, FileSequences, Sequences, make_rows
from tokflow.spans import Split
from tokflow.tables import Columns

TOKENS_AT_ONCE = 2_048 * 2_048
"""Tokens made into sequences at one go; their arrays take some 50 MB."""

INDEX_COLUMNS = ("sequence", "num_tokens", "document", "char_start", "token_in_piece")


@dataclass(frozen=True, kw_only=True)
class PartRows:
    """The sequences of one part, of which nothing is read before it is asked for."""

    part: str
    files: Sequence[FileSequences]
    packing: PackingConfig
    pad_id: int

    @property
    def num_tail_tokens(self) -> int:
        """Tokens in the tails of all files together."""
        return sum(file.manifest.counts[f"{self.part}.num_tail_tokens"] for file in self.files)

    @property
    def num_sequences(self) -> int:
        """Rows of the part, however short: those of each file, then those made of all tails."""
        in_files = sum(file.num_sequences(self.part) for file in self.files)
        if self.packing.tail == "pad":
            return in_files + -(-self.num_tail_tokens // self.packing.sequence_length)
        return in_files + self.num_tail_tokens // self.packing.sequence_length

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens of the last row where `tail: drop` leaves it out."""
        return (
            self.num_tail_tokens % self.packing.sequence_length
            if self.packing.tail == "drop"
            else 0
        )

    def sequences(self, rows: int | None = None, *, min_tokens: int = 1) -> Iterator[Sequences]:
        """Yield the part's sequences in order, `rows` at a time; the last may be fewer.

        By default so many that they take some 50 MB. Those with fewer tokens than `min_tokens`,
        padding not counted, are left out.
        """
        rows = rows or self._rows_at_once
        waiting: list[Sequences] = []
        num_waiting = 0
        for stored in self._sequences_as_stored():
            made = _long_enough(stored, min_tokens)
            waiting.append(made)
            num_waiting += len(made)
            if num_waiting < rows:
                continue
            joined = Sequences.joined(waiting)
            for start in range(0, num_waiting - rows + 1, rows):
                yield joined[start : start + rows]
            waiting = [joined[num_waiting - num_waiting % rows :]]
            num_waiting %= rows
        if num_waiting:
            yield Sequences.joined(waiting)

    def index(self, *, min_tokens: int = 1) -> Iterator[pa.Table]:
        """Yield the index of `sequences` in order, each table of one file; the tails come last."""
        first_row = 0
        for file in self.files:
            columns = file.rows(self.part, INDEX_COLUMNS)
            row, num_rows = _renumbered(columns["sequence"], columns["num_tokens"], min_tokens)
            column = _columns(columns["sequence"], columns["num_tokens"])
            yield from self._index_of_rows(file.split, columns, first_row + row, column, row >= 0)
            first_row += num_rows
        tails, rows = self._tail_rows()
        row, _ = _renumbered(rows.segments.sequence, rows.segments.num_tokens, min_tokens)
        columns = {
            **tails,
            "num_tokens": rows.segments.num_tokens,
            "token_in_piece": tails["token_in_piece"] + rows.segments.token_in_piece,
        }
        for ordinal in np.unique(rows.file).tolist():
            is_of_file = (rows.file == ordinal) & (row >= 0)
            split = self.files[ordinal].split
            yield from self._index_of_rows(split, columns, first_row + row, rows.column, is_of_file)

    @property
    def _rows_at_once(self) -> int:
        return max(1, TOKENS_AT_ONCE // self.packing.sequence_length)

    def _sequences_as_stored(self) -> Iterator[Sequences]:
        for file in self.files:
            source, masks = file.split.token_source(), file.split.loss_mask_source()
            columns = file.rows(self.part, ("sequence", "token_start", "num_tokens"))
            sequence, starts, lengths = columns.values()
            num_rows = file.num_sequences(self.part)
            row_edges = [*range(0, num_rows, self._rows_at_once), num_rows]
            for start, stop in pairwise(np.searchsorted(sequence, row_edges).tolist()):
                runs = starts[start:stop], lengths[start:stop]
                mask = None if masks is None else masks.take(*runs)
                yield self._rows(
                    source.take(*runs), mask, sequence[start:stop], lengths[start:stop]
                )
                for mapped in filter(None, (source, masks)):
                    mapped.release()
        tails, rows = self._tail_rows()
        if len(rows.file):
            token_ids, mask = self._tail_tokens(tails, rows)
            yield self._rows(token_ids, mask, rows.segments.sequence, rows.segments.num_tokens)

    def _rows(
        self,
        token_ids: npt.NDArray[np.unsignedinteger],
        loss_mask: npt.NDArray[np.uint8] | None,
        sequence: npt.NDArray[np.int64],
        num_tokens: npt.NDArray[np.int64],
    ) -> Sequences:
        unused = np.zeros(len(sequence), dtype=np.int64)
        segments = Segments(
            sequence=sequence, piece=unused, token_in_piece=unused, num_tokens=num_tokens
        )
        return make_rows(
            token_ids,
            segments,
            sequence_length=self.packing.sequence_length,
            pad_id=self.pad_id,
            loss_mask=loss_mask,
        )

    def _tail_rows(self) -> tuple[Columns, "_TailRows"]:
        """Pack the tails of all files together; return their segments and the rows made of them.

        A tail's segment that crosses a row's edge becomes two.
        """
        of_files = [file.tail(self.part) for file in self.files]
        tails = {
            name: np.concatenate([tail[name] for tail in of_files]) for name in SEGMENTS_COLUMNS
        }
        num_of_file = [len(tail["num_tokens"]) for tail in of_files]
        packed = PACKERS[self.packing.strategy](
            tails["num_tokens"], sequence_length=self.packing.sequence_length
        )
        segments = packed.segments
        if self.packing.tail == "drop":
            is_kept = segments.sequence < packed.num_sequences
            segments = Segments(
                sequence=segments.sequence[is_kept],
                piece=segments.piece[is_kept],
                token_in_piece=segments.token_in_piece[is_kept],
                num_tokens=segments.num_tokens[is_kept],
            )
        file_of_tail = np.repeat(np.arange(len(of_files)), num_of_file)
        ends = np.cumsum(segments.num_tokens)
        rows = _TailRows(
            segments=segments,
            file=file_of_tail[segments.piece],
            column=(ends - segments.num_tokens) % self.packing.sequence_length,
        )
        return {name: values[segments.piece] for name, values in tails.items()}, rows

    def _tail_tokens(
        self, tails: Columns, rows: "_TailRows"
    ) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.uint8] | None]:
        """Return the tokens of the tails, and which of them are learnt if not all."""
        starts = tails["token_start"] + rows.segments.token_in_piece
        taken, taken_masks = [], []
        for ordinal, file in enumerate(self.files):
            is_of_file = rows.file == ordinal
            if is_of_file.any():
                runs = starts[is_of_file], rows.segments.num_tokens[is_of_file]
                taken.append(file.split.token_source().take(*runs))
                if (masks := file.split.loss_mask_source()) is not None:
                    taken_masks.append(masks.take(*runs))
        return np.concatenate(taken), np.concatenate(taken_masks) if taken_masks else None

    def _index_of_rows(
        self,
        split: Split,
        columns: Columns,
        row: npt.NDArray[np.int64],
        column: npt.NDArray[np.int64],
        is_kept: npt.NDArray[np.bool_],
    ) -> Iterator[pa.Table]:
        return index_tables(
            self.part,
            split,
            position=(row * self.packing.sequence_length + column)[is_kept],
            num_tokens=columns["num_tokens"][is_kept],
            document=columns["document"][is_kept],
            char_start=columns["char_start"][is_kept],
            token_in_piece=columns["token_in_piece"][is_kept],
        )


@dataclass(frozen=True, slots=True)
class _TailRows:
    """The rows made of the tails of all files; `piece` counts segments of the tails."""

    segments: Segments
    file: npt.NDArray[np.int64]
    """Ordinal of the file each segment is of."""
    column: npt.NDArray[np.int64]


def _long_enough(made: Sequences, min_tokens: int) -> Sequences:
    if min_tokens <= 1:  # no row is empty
        return made
    is_kept = np.count_nonzero(made.segment_ids, axis=1) >= min_tokens
    return made.chosen(is_kept)


def _renumbered(
    sequence: npt.NDArray[np.int64], num_tokens: npt.NDArray[np.int64], min_tokens: int
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the row of each segment once short rows are left out, and how many rows stay.

    -1 stands for a row that is left out.
    """
    if len(sequence) == 0:
        return sequence, 0
    if min_tokens <= 1:  # no row is empty
        return sequence, int(sequence[-1]) + 1
    is_kept = np.bincount(sequence, weights=num_tokens) >= min_tokens
    row = np.where(is_kept, np.cumsum(is_kept) - 1, -1)
    return row[sequence], int(np.count_nonzero(is_kept))


def _columns(
    sequence: npt.NDArray[np.int64], num_tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return where in its row each segment begins."""
    starts: npt.NDArray[np.int64] = np.cumsum(num_tokens) - num_tokens
    is_first = np.diff(sequence, prepend=-1) != 0
    row_lengths = np.diff(np.flatnonzero(is_first), append=len(sequence))
    starts -= np.repeat(starts[is_first], row_lengths)
    return starts

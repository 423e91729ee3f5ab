"""What an export is made from: one part of the split, over all files in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.packing import PACKERS, PackingConfig, Segments
from tokflow.sequences import FileSequences, Sequences, make_rows
from tokflow.spans import Split

INDEX_SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("raw_file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("char_start", pa.int64(), nullable=False),
        pa.field("token_in_piece", pa.int64(), nullable=False),
    ]
)
"""Leads any token of an export back to its text; one row per run of tokens of one document.
position: of the run's first token in the part (in a format of sequences: sequence ordinal times
sequence_length plus column). raw_file and row: the document. char_start: code points of the
document before the text that was tokenized (0 unless the split cut it); token_in_piece: tokens
of that text before the run."""

ROWS_AT_ONCE = 2_048
"""Sequences made at one go; at a sequence_length of 2,048 their arrays take some 50 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of the split over all files, in the order of their partition keys.

    Nothing is read before it is asked for, and memory does not grow with the part.
    """

    name: str
    splits: Sequence[Split]
    sequences_of: Sequence[FileSequences] = ()
    """Empty for the formats that are made from the split alone."""
    packing: PackingConfig
    eos_id: int | None
    vocab_size: int
    dtype: np.dtype[np.unsignedinteger]

    @property
    def pad_id(self) -> int:
        """The id that fills a row."""
        if self.packing.pad_id is not None:
            return self.packing.pad_id
        return 0 if self.eos_id is None else self.eos_id

    @property
    def num_tokens(self) -> int:
        """Tokens of the part, before packing."""
        return sum(split.manifest.counts[f"{self.name}.num_tokens"] for split in self.splits)

    def stream(self) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """Yield the part's tokens, documents end to end, in memory-mapped runs."""
        for split in self.splits:
            source = split.token_source()
            spans = split.spans(self.name)
            starts, lengths = spans["token_start"].to_pylist(), spans["num_tokens"].to_pylist()
            for start, length in zip(starts, lengths, strict=True):
                yield source.run(start, start + length)

    def stream_index(self) -> Iterator[pa.Table]:
        """Yield the index of `stream`, a table per file."""
        position = 0
        for split in self.splits:
            pieces = split.pieces(self.name)
            ends = np.cumsum(pieces.num_tokens)
            yield _index_table(
                self.name,
                split,
                position=position + ends - pieces.num_tokens,
                num_tokens=pieces.num_tokens,
                document=pieces.document,
                char_start=pieces.char_start,
                token_in_piece=np.zeros(len(ends), dtype=np.int64),
            )
            position += int(ends[-1]) if len(ends) else 0

    @property
    def sequence_length(self) -> int:
        """Tokens per row."""
        return self.packing.sequence_length

    @property
    def num_tail_tokens(self) -> int:
        """Tokens in the tails of all files together."""
        return sum(
            file.manifest.counts[f"{self.name}.num_tail_tokens"] for file in self.sequences_of
        )

    @property
    def num_sequences(self) -> int:
        """Rows of the part: those of each file, then those made of all files' tails."""
        in_files = sum(file.num_sequences(self.name) for file in self.sequences_of)
        if self.packing.tail == "pad":
            return in_files + -(-self.num_tail_tokens // self.sequence_length)
        return in_files + self.num_tail_tokens // self.sequence_length

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens of the last row where `tail: drop` leaves it out."""
        return self.num_tail_tokens % self.sequence_length if self.packing.tail == "drop" else 0

    def sequences(self, rows: int = ROWS_AT_ONCE) -> Iterator[Sequences]:
        """Yield the part's sequences in order, `rows` at a time; the last may be fewer."""
        waiting: list[Sequences] = []
        num_waiting = 0
        for made in self._sequences_as_stored():
            waiting.append(made)
            num_waiting += len(made)
            if num_waiting < rows:
                continue
            joined = _joined(waiting)
            for start in range(0, num_waiting - rows + 1, rows):
                yield joined[start : start + rows]
            waiting = [joined[num_waiting - num_waiting % rows :]]
            num_waiting %= rows
        if num_waiting:
            yield _joined(waiting)

    def sequence_index(self) -> Iterator[pa.Table]:
        """Yield the index of `sequences`, a table per file and one of the rows of the tails."""
        first_row = 0
        for file in self.sequences_of:
            table = file.segments(self.name)
            num_rows = file.num_sequences(self.name)
            segments = table.filter(pc.less(table["sequence"], num_rows))
            yield self._index_of_rows(
                file.split, segments, sequence=segments["sequence"].to_numpy() + first_row
            )
            first_row += num_rows
        tails, rows = self._tail_rows()
        splits = [file.split for file in self.sequences_of]
        for ordinal, split in enumerate(splits):
            is_of_file = rows.file == ordinal
            yield self._index_of_rows(
                split,
                tails.filter(pa.array(is_of_file)),
                sequence=rows.segments.sequence[is_of_file] + first_row,
                column=rows.column[is_of_file],
                num_tokens=rows.segments.num_tokens[is_of_file],
                more=rows.segments.token_in_piece[is_of_file],
            )

    def _sequences_as_stored(self) -> Iterator[Sequences]:
        for file in self.sequences_of:
            source = file.split.token_source()
            table = file.segments(self.name)
            sequence = table["sequence"].to_numpy()
            for first in range(0, file.num_sequences(self.name), ROWS_AT_ONCE):
                last = min(first + ROWS_AT_ONCE, file.num_sequences(self.name))
                start, stop = np.searchsorted(sequence, [first, last])
                chunk = table.slice(start, stop - start)
                lengths = chunk["num_tokens"].to_numpy()
                token_ids = source.take(chunk["token_start"].to_numpy(), lengths)
                yield self._rows(token_ids, chunk["sequence"].to_numpy(), lengths)
        tails, rows = self._tail_rows()
        if tails.num_rows:
            yield self._rows(
                self._tail_tokens(tails, rows), rows.segments.sequence, rows.segments.num_tokens
            )

    def _rows(
        self,
        token_ids: npt.NDArray[np.unsignedinteger],
        sequence: npt.NDArray[np.int64],
        num_tokens: npt.NDArray[np.int64],
    ) -> Sequences:
        unused = np.zeros(len(sequence), dtype=np.int64)
        segments = Segments(
            sequence=sequence, piece=unused, token_in_piece=unused, num_tokens=num_tokens
        )
        return make_rows(
            token_ids, segments, sequence_length=self.sequence_length, pad_id=self.pad_id
        )

    def _tail_rows(self) -> tuple[pa.Table, "_TailRows"]:
        """Pack the tails of all files together; return their segments and the rows made of them.

        A tail's segment that crosses a row's edge becomes two.
        """
        tables, files = [], []
        for ordinal, file in enumerate(self.sequences_of):
            table = file.segments(self.name)
            is_tail = pc.greater_equal(table["sequence"], file.num_sequences(self.name))
            tail = table.filter(is_tail)
            tables.append(tail)
            files.append(np.full(tail.num_rows, ordinal))
        tails = pa.concat_tables(tables)
        packed = PACKERS[self.packing.strategy](
            tails["num_tokens"].to_numpy(), sequence_length=self.sequence_length
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
        file_of_tail = np.concatenate(files)
        ends = np.cumsum(segments.num_tokens)
        rows = _TailRows(
            segments=segments,
            file=file_of_tail[segments.piece],
            column=(ends - segments.num_tokens) % self.sequence_length,
        )
        return tails.take(pa.array(segments.piece)), rows

    def _tail_tokens(self, tails: pa.Table, rows: "_TailRows") -> npt.NDArray[np.unsignedinteger]:
        starts = tails["token_start"].to_numpy() + rows.segments.token_in_piece
        taken = []
        for ordinal, file in enumerate(self.sequences_of):
            is_of_file = rows.file == ordinal
            if is_of_file.any():
                source = file.split.token_source()
                lengths = rows.segments.num_tokens[is_of_file]
                taken.append(source.take(starts[is_of_file], lengths))
        return np.concatenate(taken)

    def _index_of_rows(
        self,
        split: Split,
        segments: pa.Table,
        *,
        sequence: npt.NDArray[np.int64],
        column: npt.NDArray[np.int64] | None = None,
        num_tokens: npt.NDArray[np.int64] | None = None,
        more: npt.NDArray[np.int64] | int = 0,
    ) -> pa.Table:
        lengths = segments["num_tokens"].to_numpy() if num_tokens is None else num_tokens
        return _index_table(
            self.name,
            split,
            position=sequence * self.sequence_length
            + (_columns(sequence, lengths) if column is None else column),
            num_tokens=lengths,
            document=segments["document"].to_numpy(),
            char_start=segments["char_start"].to_numpy(),
            token_in_piece=segments["token_in_piece"].to_numpy() + more,
        )


@dataclass(frozen=True, slots=True)
class _TailRows:
    """The rows made of the tails of all files; `piece` counts segments of the tails."""

    segments: Segments
    file: npt.NDArray[np.int64]
    """Ordinal of the file each segment is of."""
    column: npt.NDArray[np.int64]


def _columns(
    sequence: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return where in its row each segment begins."""
    if len(sequence) == 0:
        return lengths
    starts = np.cumsum(lengths) - lengths
    is_first = np.ones(len(sequence), dtype=bool)
    is_first[1:] = sequence[1:] != sequence[:-1]
    row_start = np.repeat(starts[is_first], np.diff([*np.flatnonzero(is_first), len(sequence)]))
    return starts - row_start


def _index_table(
    part: str,
    split: Split,
    *,
    position: npt.NDArray[np.int64],
    num_tokens: npt.NDArray[np.int64],
    document: npt.NDArray[np.int64],
    char_start: npt.NDArray[np.int64],
    token_in_piece: npt.NDArray[np.int64],
) -> pa.Table:
    row = split.shard.documents(["row"])["row"].to_numpy()[document]
    is_some = num_tokens > 0
    columns = {
        "position": position,
        "num_tokens": num_tokens,
        "row": row,
        "char_start": char_start,
        "token_in_piece": token_in_piece,
    }
    num = int(np.count_nonzero(is_some))
    return (
        pa.table(
            {
                "part": pa.repeat(pa.scalar(part), num),
                "raw_file": pa.repeat(pa.scalar(str(split.manifest.partition)), num),
                **{name: values[is_some] for name, values in columns.items()},
            }
        )
        .select(INDEX_SCHEMA.names)
        .cast(INDEX_SCHEMA)
    )


def _joined(waiting: Sequence[Sequences]) -> Sequences:
    if len(waiting) == 1:
        return waiting[0]
    return Sequences(
        np.concatenate([made.token_ids for made in waiting]),
        np.concatenate([made.segment_ids for made in waiting]),
        np.concatenate([made.position_ids for made in waiting]),
    )

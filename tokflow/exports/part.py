"""What an export is made from: one part of the split, over all files in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.arrays import make_table, repeated, to_numpy
from tokflow.errors import ConfigError, four_parts
from tokflow.exports.texts import TextSource
from tokflow.packing import PACKERS, PackingConfig, Segments
from tokflow.sequences import SEGMENTS_COLUMNS, FileSequences, Sequences, make_rows
from tokflow.spans import Split, TokenSource
from tokflow.tables import Columns
from tokflow.tokens import TokenShard

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

TOKENS_AT_ONCE = 2_048 * 2_048
"""Tokens read or made into sequences at one go; their arrays take some 50 MB."""

INDEX_ROWS_AT_ONCE = 2**20
"""Rows of one table of the index, and so of one row group."""

INDEX_COLUMNS = ("sequence", "num_tokens", "document", "char_start", "token_in_piece")


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentsOfFile:
    """The documents that one file has in a part, in file order; arrays (num_documents,)."""

    raw_file: str
    """The partition key."""
    row: npt.NDArray[np.int64]
    """Ordinal of each in the raw file."""
    char_start: npt.NDArray[np.int64]
    """Code points of the document before it: 0, unless the split cut the document."""
    num_tokens: npt.NDArray[np.int64]
    """BOS and EOS included; 0 of an empty document that has neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of the split over all files, in the order of their partition keys.

    Nothing is read before it is asked for. Memory grows with the documents of the largest file
    (some 100 bytes for each), not with the part.
    """

    name: str
    splits: Sequence[Split]
    sequences_of: Sequence[FileSequences] = ()
    """Empty for the formats that are made from the split alone."""
    text_source: TextSource | None = None
    """Only for the formats that hold texts."""
    packing: PackingConfig
    eos_id: int | None
    """The id that ends each document; None where none does."""
    bos_id: int | None = None
    """The id that begins each document; None where none does."""
    vocab_size: int
    dtype: np.dtype[np.unsignedinteger]

    def __post_init__(self) -> None:
        largest = int(np.iinfo(self.dtype).max)
        if not 0 <= self.pad_id <= largest:
            raise ConfigError(
                four_parts(
                    where="packing.pad_id",
                    expected=f"an id from 0 to {largest:,}, for tokens are {self.dtype.name}",
                    found=f"{self.pad_id:,}",
                    remedy="name an id that the model knows or ignores",
                )
            )

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

    @property
    def has_loss_mask(self) -> bool:
        """Whether only some tokens are learnt: the documents are chats."""
        return any(split.shard.has_loss_mask for split in self.splits)

    def stream(self, *, eos_first: bool = False) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """Yield the part's tokens, documents end to end, some million at a time: of long runs
        as they are mapped, short ones joined.

        With `eos_first` the EOS of each document stands before it; documents that begin with BOS
        stay as they are.

        Raises: ConfigError where `eos_first` is asked for and documents have neither.
        """
        runs = (
            run for split in self.splits for run in self._stream_of(split, split.token_source())
        )
        eos_id = self._eos_to_move() if eos_first else None
        return runs if eos_id is None else _with_eos_first(runs, eos_id)

    def texts(self) -> Iterator[pa.Array]:
        """Yield the texts of `documents` in order, some megabytes at a time.

        Only where `text_source` is given.
        """
        if self.text_source is None:
            raise TypeError("texts are read for formats that are made of them, and for no other")
        for split in self.splits:
            yield from self.text_source.texts(split, self.name)

    def documents(self) -> Iterator[DocumentsOfFile]:
        """Yield what `stream` is made of, in order, the documents of one file at a time.

        A piece of a cut document counts as a document, one without tokens too.
        """
        for split in self.splits:
            pieces = split.pieces(self.name)
            row = to_numpy(split.shard.documents(["row"])["row"])
            yield DocumentsOfFile(
                raw_file=str(split.manifest.partition),
                row=row[pieces.document],
                char_start=pieces.char_start,
                num_tokens=pieces.num_tokens,
            )

    @property
    def whole_shard(self) -> TokenShard | None:
        """The token shard that `stream` is a copy of, if it is all of one and nothing else."""
        splits = [
            split for split in self.splits if split.manifest.counts[f"{self.name}.num_tokens"]
        ]
        if len(splits) != 1:
            return None
        shard = splits[0].shard
        spans = splits[0].spans(self.name)
        is_whole = len(spans) == 1 and self.num_tokens == shard.num_tokens
        return shard if is_whole and not to_numpy(spans["is_cut"])[0] else None

    def stream_loss_mask(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield 1 for each token of `stream` that is learnt, else 0, in runs of the same sizes.

        Only where `has_loss_mask`; without it every token is learnt.
        """
        for split in self.splits:
            if (source := split.loss_mask_source()) is not None:
                yield from self._stream_of(split, source)

    def _stream_of(self, split: Split, source: TokenSource) -> Iterator[npt.NDArray[Any]]:
        spans = split.spans(self.name)
        starts, lengths = to_numpy(spans["token_start"]), to_numpy(spans["num_tokens"])
        block = (np.cumsum(lengths) - lengths) // TOKENS_AT_ONCE
        edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(block)]
        for first, last in pairwise(edges):
            run = source.take(starts[first:last], lengths[first:last])
            for start in range(0, len(run), TOKENS_AT_ONCE):
                yield run[start : start + TOKENS_AT_ONCE]
                source.release()

    def stream_index(self, *, eos_first: bool = False) -> Iterator[pa.Table]:
        """Yield the index of `stream` in order, each table of one file."""
        position = 0
        moves_eos = eos_first and self._eos_to_move() is not None
        for split in self.splits:
            pieces = split.pieces(self.name)
            ends = np.cumsum(pieces.num_tokens)
            columns = {
                "position": position + ends - pieces.num_tokens,
                "num_tokens": pieces.num_tokens,
                "document": pieces.document,
                "char_start": pieces.char_start,
                "token_in_piece": np.zeros(len(ends), dtype=np.int64),
            }
            columns = _split_at_eos(columns) if moves_eos else columns
            yield from _index_tables(self.name, split, **columns)
            position += int(ends[-1]) if len(ends) else 0

    def _eos_to_move(self) -> int | None:
        """Return the EOS that must be moved before each document; None where a BOS stands there.

        Raises: ConfigError.
        """
        if self.bos_id is not None:
            return None
        if self.eos_id is None:
            raise ConfigError(
                four_parts(
                    where=f"exports: {self.name}",
                    expected="documents with an EOS, which this format has before each of them",
                    found="documents without EOS and BOS",
                    remedy="set `tokenizer.eos: last`, or name another format",
                )
            )
        self._check_last_tokens()
        return self.eos_id

    def _check_last_tokens(self) -> None:
        """Make sure that each document ends with EOS."""
        for split in self.splits:
            pieces = split.pieces(self.name)
            is_some = pieces.num_tokens > 0
            last = (pieces.token_start + pieces.num_tokens - 1)[is_some]
            found = split.token_source().take(last, np.ones(len(last), dtype=np.int64))
            if len(wrong := np.flatnonzero(found != self.eos_id)):
                row = split.shard.documents(["row"])["row"][pieces.document[is_some][wrong[0]]]
                raise ConfigError(
                    four_parts(
                        where=f"{split.manifest.partition}: document {row.as_py():,}",
                        expected=f"EOS ({self.eos_id}) as its last token, to be moved before it",
                        found=f"token {int(found[wrong[0]])}",
                        remedy="name a format that keeps EOS last",
                    )
                )

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
        """Rows of the part, however short: those of each file, then those made of all tails."""
        in_files = sum(file.num_sequences(self.name) for file in self.sequences_of)
        if self.packing.tail == "pad":
            return in_files + -(-self.num_tail_tokens // self.sequence_length)
        return in_files + self.num_tail_tokens // self.sequence_length

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens of the last row where `tail: drop` leaves it out."""
        return self.num_tail_tokens % self.sequence_length if self.packing.tail == "drop" else 0

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

    def sequence_index(self, *, min_tokens: int = 1) -> Iterator[pa.Table]:
        """Yield the index of `sequences` in order, each table of one file; the tails come last."""
        first_row = 0
        for file in self.sequences_of:
            columns = file.rows(self.name, INDEX_COLUMNS)
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
            split = self.sequences_of[ordinal].split
            yield from self._index_of_rows(split, columns, first_row + row, rows.column, is_of_file)

    @property
    def _rows_at_once(self) -> int:
        return max(1, TOKENS_AT_ONCE // self.sequence_length)

    def _sequences_as_stored(self) -> Iterator[Sequences]:
        for file in self.sequences_of:
            source, masks = file.split.token_source(), file.split.loss_mask_source()
            columns = file.rows(self.name, ("sequence", "token_start", "num_tokens"))
            sequence, starts, lengths = columns.values()
            num_rows = file.num_sequences(self.name)
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
            sequence_length=self.sequence_length,
            pad_id=self.pad_id,
            loss_mask=loss_mask,
        )

    def _tail_rows(self) -> tuple[Columns, "_TailRows"]:
        """Pack the tails of all files together; return their segments and the rows made of them.

        A tail's segment that crosses a row's edge becomes two.
        """
        of_files = [file.tail(self.name) for file in self.sequences_of]
        tails = {
            name: np.concatenate([tail[name] for tail in of_files]) for name in SEGMENTS_COLUMNS
        }
        num_of_file = [len(tail["num_tokens"]) for tail in of_files]
        packed = PACKERS[self.packing.strategy](
            tails["num_tokens"], sequence_length=self.sequence_length
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
            column=(ends - segments.num_tokens) % self.sequence_length,
        )
        return {name: values[segments.piece] for name, values in tails.items()}, rows

    def _tail_tokens(
        self, tails: Columns, rows: "_TailRows"
    ) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.uint8] | None]:
        """Return the tokens of the tails, and which of them are learnt if not all."""
        starts = tails["token_start"] + rows.segments.token_in_piece
        taken, taken_masks = [], []
        for ordinal, file in enumerate(self.sequences_of):
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
        return _index_tables(
            self.name,
            split,
            position=(row * self.sequence_length + column)[is_kept],
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


def _with_eos_first(
    runs: Iterator[npt.NDArray[np.unsignedinteger]], eos_id: int
) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """Yield an EOS and all of `runs` but the last token, which is one."""
    waiting = None
    for run in runs:
        yield np.array([eos_id], dtype=run.dtype) if waiting is None else waiting
        waiting = run
    if waiting is not None:
        yield waiting[:-1]


def _split_at_eos(columns: Columns) -> Columns:
    """Return the index of documents whose EOS was moved before them: two runs for each."""
    num_tokens = columns["num_tokens"]
    twice = {name: np.repeat(values, 2) for name, values in columns.items()}
    twice["position"][1::2] += 1
    twice["num_tokens"][::2] = np.minimum(num_tokens, 1)
    twice["num_tokens"][1::2] = np.maximum(num_tokens - 1, 0)
    twice["token_in_piece"][::2] = np.maximum(num_tokens - 1, 0)
    return twice


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


def _index_tables(
    part: str,
    split: Split,
    *,
    document: npt.NDArray[np.int64],
    num_tokens: npt.NDArray[np.int64],
    **columns: npt.NDArray[np.int64],
) -> Iterator[pa.Table]:
    """Yield the index of runs of tokens of one file; a run of no tokens has no row in it."""
    is_some = num_tokens > 0
    if not is_some.any():
        return
    row = to_numpy(split.shard.documents(["row"])["row"])[document]
    whole = {"row": row, "num_tokens": num_tokens, **columns}
    if not is_some.all():
        whole = {name: values[is_some] for name, values in whole.items()}
    raw_file = str(split.manifest.partition)
    for first in range(0, len(whole["row"]), INDEX_ROWS_AT_ONCE):
        some = {name: values[first : first + INDEX_ROWS_AT_ONCE] for name, values in whole.items()}
        num = len(some["row"])
        names = {"part": repeated(part, num), "raw_file": repeated(raw_file, num)}
        yield make_table({**names, **some}, INDEX_SCHEMA)

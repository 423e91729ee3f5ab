"""Sequences of one file: for each part, rows of equal length as a table of token runs."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.sequences.packing import Packed, PackingConfig, Segments, pack_pieces
from tokflow.split.spans import SPANS_NAME, PartSpans, Split
from tokflow.store.arrow import make_table, repeated
from tokflow.store.integrity import Stored, checked
from tokflow.store.manifest import Manifest, Recipe, check_sizes, checksums, write_manifest
from tokflow.store.tables import Columns, parquet_options, read_part
from tokflow.tokens.writer import DOCUMENTS_NAME

SEQUENCES_VERSION = 2
"""Raised when the same input would give other bytes."""

SEGMENTS_NAME = "segments.parquet"

SEGMENTS_SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("token_start", pa.int64(), nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("document", pa.int64(), nullable=False),
        pa.field("char_start", pa.int64(), nullable=False),
        pa.field("token_in_piece", pa.int64(), nullable=False),
        pa.field("num_repeated", pa.int64(), nullable=False),
    ]
)
"""One row per segment, a run of tokens of one document in one sequence. sequence: its ordinal
in the part; those with the ordinal num_sequences are the tail. token_start: position in the
split's token source. document: index in documents.parquet. char_start: code points of the
document before the piece the segment is of, 0 unless the split cut it; token_in_piece: tokens of
that piece before the segment; num_repeated: tokens at its beginning that are in
another sequence too."""


SEGMENTS_COLUMNS = tuple(SEGMENTS_SCHEMA.names[1:])


@dataclass(frozen=True, slots=True)
class Sequences:
    """Rows of equal length. Every array has shape (num_sequences, sequence_length)."""

    token_ids: npt.NDArray[np.unsignedinteger]
    segment_ids: npt.NDArray[np.int32]
    """1 for the first document of the row, 2 for the next; 0 is padding."""
    position_ids: npt.NDArray[np.int32]
    """0 at the first token of each segment, then counting up; 0 where there is padding."""

    loss_mask: npt.NDArray[np.bool_]
    """True where the label counts: at every token or, of chats, at those that are learnt; never
    at padding."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, rows: slice) -> "Sequences":
        return self.chosen(rows)

    def chosen(self, rows: slice | npt.NDArray[np.bool_]) -> "Sequences":
        """Return some of the rows."""
        return Sequences(
            self.token_ids[rows],
            self.segment_ids[rows],
            self.position_ids[rows],
            self.loss_mask[rows],
        )

    @staticmethod
    def joined(made: Sequence["Sequences"]) -> "Sequences":
        """Return the rows of all, one after another."""
        if len(made) == 1:
            return made[0]
        return Sequences(
            np.concatenate([some.token_ids for some in made]),
            np.concatenate([some.segment_ids for some in made]),
            np.concatenate([some.position_ids for some in made]),
            np.concatenate([some.loss_mask for some in made]),
        )


@dataclass(frozen=True, slots=True)
class FileSequences:
    """The sequences of one file, as `open_sequences` found them."""

    folder: Path
    manifest: Manifest
    split: Split

    def num_sequences(self, part: str) -> int:
        """Return the number of finished rows of a part; its tail is not among them."""
        return self.manifest.counts[f"{part}.num_sequences"]

    def rows(self, part: str, columns: Sequence[str] = SEGMENTS_COLUMNS) -> Columns:
        """Return the segments of the finished rows of a part, in the order of the rows."""
        done = (0, self.num_sequences(part))
        return read_part(self.folder / SEGMENTS_NAME, part, columns, sequences=done)

    def tail(self, part: str) -> Columns:
        """Return the segments of a part that fill no row of this file."""
        if self.manifest.counts[f"{part}.num_tail_tokens"] == 0:
            return {name: np.zeros(0, dtype=np.int64) for name in SEGMENTS_COLUMNS}
        last = self.num_sequences(part)
        path = self.folder / SEGMENTS_NAME
        return read_part(path, part, SEGMENTS_COLUMNS, sequences=(last, last + 1))


def sequences_recipe(split: str, config: PackingConfig) -> Recipe:
    """Return what decides the sequences of the split with fingerprint `split`."""
    return Recipe(
        stage="sequences",
        version=SEQUENCES_VERSION,
        config=config.fields_of_file(),
        parents={"split": split},
    )


def write_sequences(split: Split, config: PackingConfig, folder: Path, *, dataset: str) -> None:
    """Write the sequences of every part of one file into the empty `folder`, manifest last.

    Raises: CorruptOutputError where a table that they are made from is damaged.
    """
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    started = time.perf_counter()
    counts: dict[str, int] = {}
    tables = []
    with checked(split, split.shard, only={SPANS_NAME, DOCUMENTS_NAME}):
        for part in split.parts:
            pieces = split.spans(part)
            packed = pack_pieces(pieces.num_tokens, config)
            tables.append(_segments_table(part, pieces, packed.segments))
            counts |= _counts(part, packed, config.row_length)
    pq.write_table(
        pa.concat_tables(tables), folder / SEGMENTS_NAME, **parquet_options(SEGMENTS_SCHEMA)
    )
    manifest = Manifest(
        recipe=sequences_recipe(split.manifest.fingerprint, config),
        dataset=dataset,
        partition=split.manifest.partition,
        counts=counts,
        details={"parts": list(split.parts), "sequence_length": config.row_length},
        files=checksums(folder),
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def open_sequences(stored: Stored, split: Split) -> FileSequences:
    """Return sequences that are in a store, made from `split`.

    Raises: CorruptOutputError where a file is missing or cut short.
    """
    check_sizes(stored.folder, stored.manifest)
    return FileSequences(stored.folder, stored.manifest, split)


def make_rows(
    token_ids: npt.NDArray[np.unsignedinteger],
    sequence: npt.NDArray[np.int64],
    num_tokens: npt.NDArray[np.int64],
    *,
    sequence_length: int,
    pad_id: int,
    loss_mask: npt.NDArray[np.uint8] | None = None,
) -> Sequences:
    """Return the rows of segments, filled from `token_ids`, in which the segments are end to end.

    `sequence` and `num_tokens`: the row and the size of each segment. The first row is the one of
    the first segment; every row up to the last has a segment. `loss_mask` has a value for each
    token; without it every token counts.

    For segments of 3 and 1 tokens in row 0 and of 2 in row 1, rows of 4:

        token_ids     [a a a b]  [b b . .]
        segment_ids   [1 1 1 2]  [1 1 0 0]
        position_ids  [0 1 2 0]  [0 1 0 0]
    """
    if len(num_tokens) == 0:
        empty = np.zeros((0, sequence_length), dtype=np.int32)
        return Sequences(empty.astype(token_ids.dtype), empty, empty, empty.astype(bool))
    row = sequence - sequence[0]
    num_rows = int(row[-1]) + 1
    is_first = np.ones(len(row), dtype=bool)
    is_first[1:] = row[1:] != row[:-1]
    ordinal = np.arange(len(row)) - np.flatnonzero(is_first)[row] + 1
    segment_ids = np.repeat(ordinal.astype(np.int32), num_tokens)
    starts = np.cumsum(num_tokens) - num_tokens
    position_ids = np.arange(len(token_ids), dtype=np.int32)
    position_ids -= np.repeat(starts.astype(np.int32), num_tokens)
    fill = np.bincount(row, weights=num_tokens, minlength=num_rows).astype(np.int64)
    shape = (num_rows, sequence_length)
    if (fill == sequence_length).all():
        segment_ids = segment_ids.reshape(shape)
        return Sequences(
            token_ids.reshape(shape),
            segment_ids,
            position_ids.reshape(shape),
            segment_ids != 0 if loss_mask is None else loss_mask.astype(bool).reshape(shape),
        )
    is_token = np.arange(sequence_length) < fill[:, None]
    return Sequences(
        _placed(token_ids, is_token, pad_id),
        _placed(segment_ids, is_token, 0),
        _placed(position_ids, is_token, 0),
        is_token if loss_mask is None else _placed(loss_mask.astype(bool), is_token, 0),
    )


def _placed(values: npt.NDArray[Any], is_token: npt.NDArray[np.bool_], rest: int) -> Any:
    out = np.full(is_token.shape, rest, dtype=values.dtype)
    out[is_token] = values
    return out


def _segments_table(part: str, pieces: PartSpans, segments: Segments) -> pa.Table:
    piece = segments.piece
    return make_table(
        {
            "part": repeated(part, len(piece)),
            "sequence": segments.sequence,
            "token_start": pieces.token_start[piece] + segments.token_in_piece,
            "num_tokens": segments.num_tokens,
            "document": pieces.document[piece],
            "char_start": pieces.char_start[piece],
            "token_in_piece": segments.token_in_piece,
            "num_repeated": segments.num_repeated,
        },
        SEGMENTS_SCHEMA,
    )


def _counts(part: str, packed: Packed, sequence_length: int) -> dict[str, int]:
    segments = packed.segments
    is_tail = segments.sequence >= packed.num_sequences
    in_rows = int(segments.num_tokens[~is_tail].sum())
    counts = {
        "num_sequences": packed.num_sequences,
        "num_tokens": in_rows,
        "num_padding": packed.num_sequences * sequence_length - in_rows,
        "num_tail_tokens": int(segments.num_tokens[is_tail].sum()),
        "num_repeated_tokens": int(segments.num_repeated.sum()),
        **asdict(packed.counts),
    }
    return {f"{part}.{name}": num for name, num in counts.items()}

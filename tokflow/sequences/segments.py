"""Sequences of one file: for each part, a table of the segments that stand in them, and what
became of its turns.

A turn is a run of neighbouring supervised tokens of one document, such as a reply of a chat.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.sequences import PackingConfig, Side, one_or_each
from tokflow.sequences.packing import PackingResult, Segments, pack_spans
from tokflow.split import Split
from tokflow.store.manifest import Manifest, Recipe, write_manifest
from tokflow.store.store import InStore, StoredOutput
from tokflow.store.streams import HashedWriter
from tokflow.store.tables import Columns, make_table, parquet_options, read_part, repeated, to_numpy
from tokflow.tokens.shard import Origins

SEQUENCES_VERSION = 2
"""Raised when the same input would give other bytes."""

TOKENS_AT_ONCE = 2**24
"""Tokens whose mask is in memory at one time; a longer segment is read whole."""

NO_MASK = 2
"""In a source, the value of tokens of documents that are no chats: supervised, but of no turn."""

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
"""One row per segment, the tokens that one sequence holds of one span. sequence: its ordinal
in the part; those with the ordinal num_sequences are the tail. token_start: position in the
split's token source. document: index in documents.parquet. char_start: code points of the
document before the span the segment is of, 0 unless the split cut it; token_in_piece: tokens of
that span before the segment; num_repeated: tokens at its beginning that are in
another sequence too."""


SEGMENTS_COLUMNS = tuple(SEGMENTS_SCHEMA.names[1:])


@dataclass(frozen=True, slots=True)
class Sequences:
    """Token ids with what a model needs. Arrays of shape (num_sequences, sequence_length)."""

    token_ids: npt.NDArray[np.unsignedinteger]
    segment_ids: npt.NDArray[np.int32]
    """1 for the first segment of the sequence, 2 for the next; 0 is padding."""
    position_ids: npt.NDArray[np.int32]
    """0 at the first token of each segment, then counting up; 0 where there is padding."""
    loss_mask: npt.NDArray[np.bool_]
    """True at loss tokens: at every token or, of chats, at those of the replies; never at
    padding."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, which: slice | npt.NDArray[np.bool_]) -> "Sequences":
        return Sequences(*(array[which] for array in self._arrays))

    @staticmethod
    def joined(several: Sequence["Sequences"]) -> "Sequences":
        """Return all of several, one after another."""
        if len(several) == 1:
            return several[0]
        return Sequences(*map(np.concatenate, zip(*(s._arrays for s in several), strict=True)))

    @property
    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self.token_ids, self.segment_ids, self.position_ids, self.loss_mask


class MaskSource(Protocol):
    """Loss mask of the tokens of one split or of several, end to end."""

    def take(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Any:
        """Return the mask of many runs of tokens, end to end."""


@dataclass(frozen=True, slots=True)
class SpanMask:
    """The loss mask of spans, read where it is asked for."""

    source: MaskSource
    """0, 1 or NO_MASK for each token."""
    span_start: npt.NDArray[np.int64]
    """The position in `source` of each span's first token; (num_spans,)."""

    def num_supervised(self, segments: Segments) -> npt.NDArray[np.int64]:
        """Return how many tokens of each segment are supervised, (num_segments,)."""
        found = np.zeros(len(segments), dtype=np.int64)
        for some, values in self._read(segments):
            edges = np.cumsum(segments.num_tokens[some]) - segments.num_tokens[some]
            found[some] = np.add.reduceat(values > 0, edges, dtype=np.int64)
        return found

    def turn_counts(self, whole: Segments, packed: Segments) -> dict[str, int]:
        """Return what became of the turns of spans, `whole`, that are packed into segments.

        num_cut_turns: turns cut where a sequence ends, once for each cut; num_dropped_turns: turns
        whose first token is in no sequence.
        """
        firsts, lasts = whole.token_in_span, whole.token_in_span + whole.num_tokens
        stops = packed.token_in_span + packed.num_tokens
        is_inside = stops < lasts[packed.span]
        begun = lasts.copy()  # differs from firsts where `overlong` took the beginning away
        np.minimum.at(begun, packed.span, packed.token_in_span)
        truncated = np.flatnonzero((begun > firsts) & (begun < lasts))
        span = np.append(packed.span[is_inside], truncated)
        edge = np.append(stops[is_inside], begun[truncated])
        pairs = self.source.take(self.span_start[span] + edge - 1, np.full(len(edge), 2))
        num_dropped, once, packed_once = 0, _once(whole), _once(packed)
        if once.num_tokens.sum() > packed_once.num_tokens.sum():
            num_dropped = self._num_turns(once) - self._num_turns(packed_once)
        num_cut = int(np.count_nonzero((pairs.reshape(-1, 2) == 1).all(axis=1)))
        return {"num_cut_turns": num_cut, "num_dropped_turns": num_dropped}

    def _num_turns(self, segments: Segments) -> int:
        """Return how many turns begin in segments."""
        has_before = segments.token_in_span > 0
        longer = replace(
            segments,
            token_in_span=segments.token_in_span - has_before,
            num_tokens=segments.num_tokens + has_before,
        )
        num = 0
        for some, values in self._read(longer):
            first = np.cumsum(longer.num_tokens[some]) - longer.num_tokens[some]
            is_turn = values == 1
            begins = is_turn & ~np.append(False, is_turn[:-1])
            begins[first] = is_turn[first] & ~has_before[some]
            num += int(np.count_nonzero(begins))
        return num

    def _read(self, segments: Segments) -> Iterator[tuple[slice, npt.NDArray[np.uint8]]]:
        """Yield some segments, in order, and the mask of their tokens."""
        start, sizes = self.span_start[segments.span] + segments.token_in_span, segments.num_tokens
        ends = np.cumsum(sizes)
        first = 0
        while first < len(sizes):
            most = ends[first] - sizes[first] + TOKENS_AT_ONCE
            some = slice(first, max(first + 1, int(np.searchsorted(ends, most, "right"))))
            yield some, self.source.take(start[some], sizes[some])
            first = some.stop


def _once(segments: Segments) -> Segments:
    """Return segments without tokens that another sequence has before them."""
    left = replace(
        segments,
        token_in_span=segments.token_in_span + segments.num_repeated,
        num_tokens=segments.num_tokens - segments.num_repeated,
        num_repeated=np.zeros_like(segments.num_repeated),
    )
    return left.chosen(left.num_tokens > 0)


@dataclass(frozen=True, slots=True)
class FileSequences(InStore):
    """The sequences of one file, made from its split."""

    stored: StoredOutput
    split: Split

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of its manifest."""
        return self.manifest.counts

    @property
    def origins(self) -> Origins:
        """The raw files that `rows` are of."""
        return self.split.shard.origins

    def rows(self) -> npt.NDArray[np.int64]:
        """Return the row of each document of the token shard."""
        return to_numpy(self.split.shard.documents(["row"])["row"])

    def segments(self, part: str, columns: Sequence[str] = SEGMENTS_COLUMNS) -> Columns:
        """Return the segments of the finished sequences of a part, in the order of these."""
        done = (0, self.counts[f"{part}.num_sequences"])
        return read_part(self.stored.file(SEGMENTS_NAME), part, columns, sequences=done)

    def tail(self, part: str) -> Columns:
        """Return the segments of a part that fill no sequence of this file: its leftover tokens."""
        last = self.counts[f"{part}.num_sequences"]
        path, tail = self.stored.file(SEGMENTS_NAME), (last, last + 1)
        return read_part(path, part, SEGMENTS_COLUMNS, sequences=tail)


def sequences_recipe(split: str, config: PackingConfig) -> Recipe:
    """Return what decides the sequences of the split with fingerprint `split`."""
    return Recipe(
        stage="sequences",
        version=SEQUENCES_VERSION,
        config=config.fields_of_file(),
        parents={"split": split},
    )


def write_sequences(split: Split, folder: Path, *, dataset: str, recipe: Recipe) -> None:
    """Write the sequences of every part of one file, packed as the recipe has it, into the empty
    `folder`, manifest last.

    Raises: CorruptOutputError where a table that they are made from is damaged.
    """
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    started, config = time.perf_counter(), PackingConfig(**recipe.config)
    counts: dict[str, int] = {}
    lengths = {part: config.of_part(part).stored_length for part in split.parts}
    tables = []
    source = split.loss_mask_source()
    for part, spans in split.spans_of_parts().items():
        packing = config.of_part(part)
        mask = None if source is None else SpanMask(source, spans.token_start)
        packed, own = pack_and_count(spans.num_tokens, packing, mask)
        segments, span = packed.segments, packed.segments.span
        columns = {
            "part": repeated(part, len(span)),
            "sequence": segments.sequence,
            "token_start": spans.token_start[span] + segments.token_in_span,
            "num_tokens": segments.num_tokens,
            "document": spans.document[span],
            "char_start": spans.char_start[span],
            "token_in_piece": segments.token_in_span,
            "num_repeated": segments.num_repeated,
        }
        tables.append(make_table(columns, SEGMENTS_SCHEMA))
        counts |= {f"{part}.{name}": num for name, num in own.items()}
    with HashedWriter(folder / SEGMENTS_NAME) as file:
        pq.write_table(pa.concat_tables(tables), file, **parquet_options(SEGMENTS_SCHEMA))
    manifest = Manifest(
        recipe=recipe,
        dataset=dataset,
        partition=split.manifest.partition,
        counts=counts,
        details={"parts": list(split.parts), "sequence_length": one_or_each(lengths)},
        files={SEGMENTS_NAME: file.entry()},
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def fill_sequences(
    token_ids: npt.NDArray[np.unsignedinteger],
    sequence: npt.NDArray[np.int64],
    num_tokens: npt.NDArray[np.int64],
    *,
    sequence_length: int,
    pad_id: int,
    padding_side: Side = "right",
    loss_mask: npt.NDArray[np.uint8] | None = None,
) -> Sequences:
    """Return the sequences of segments, filled from `token_ids`, where these stand end to end.

    `sequence` and `num_tokens`: the ordinal and the size of each segment. The first sequence is
    the one of the first segment; every one up to the last has a segment. `loss_mask` has a value
    for each token; by default it is a loss token. For sequences of 4, with segments of 3 and 1
    tokens in the first and of 2 in the second:

        token_ids     [a a a b]  [b b . .]
        segment_ids   [1 1 1 2]  [1 1 0 0]
        position_ids  [0 1 2 0]  [0 1 0 0]
    """
    ordinal = sequence - sequence[:1]
    fill = np.bincount(ordinal, weights=num_tokens).astype(np.int64)
    is_full = (fill == sequence_length).all()
    column = np.arange(sequence_length)[:: -1 if padding_side == "left" else 1]
    is_token = np.ones((len(fill), len(column)), bool) if is_full else column < fill[:, None]

    is_first = np.diff(ordinal, prepend=-1) != 0
    segment = np.arange(len(ordinal)) - np.flatnonzero(is_first)[ordinal] + 1
    positions = np.arange(num_tokens.sum(), dtype=np.int32)
    positions -= np.repeat((np.cumsum(num_tokens) - num_tokens).astype(np.int32), num_tokens)

    def placed(values: npt.NDArray[Any], rest: int = 0) -> npt.NDArray[Any]:
        if is_full:
            return values.reshape(is_token.shape)
        out = np.full(is_token.shape, rest, dtype=values.dtype)
        out[is_token] = values
        return out

    return Sequences(
        placed(token_ids, pad_id),
        placed(np.repeat(segment.astype(np.int32), num_tokens)),
        placed(positions),
        is_token if loss_mask is None else placed(loss_mask.astype(bool)),
    )


def pack_and_count(
    num_tokens: npt.NDArray[np.int64], config: PackingConfig, mask: SpanMask | None
) -> tuple[PackingResult, dict[str, int]]:
    """Return the sequences of one file or group, given the tokens of each of its spans and, of
    chats, their loss mask; and their counts, as the manifest has them."""
    packed = pack_spans(num_tokens, config, mask.num_supervised if mask else None)
    segments = packed.segments
    is_tail = segments.sequence >= packed.num_sequences
    in_sequences = int(segments.num_tokens[~is_tail].sum())
    counts = {
        "num_sequences": packed.num_sequences,
        "num_tokens": in_sequences,
        "num_padding": packed.num_sequences * config.stored_length - in_sequences,
        "num_tail_tokens": int(segments.num_tokens[is_tail].sum()),
        "num_repeated_tokens": int(segments.num_repeated.sum()),
        **asdict(packed.counts),
    }
    if mask is None or not config.drop_unsupervised:
        del counts["num_dropped_sequences"]
    if mask is not None:
        zeros, spans = np.zeros_like(num_tokens), np.arange(len(num_tokens))
        whole = Segments(
            sequence=zeros,
            span=spans,
            token_in_span=zeros,
            num_tokens=num_tokens,
            num_repeated=zeros,
        )
        counts |= mask.turn_counts(whole, segments)
    return packed, counts

"""The sequences of one part over all files, and those made of tails, in an order of any of them.

A tail is what fills no sequence of its file, or group; those of all are packed when an export is
made, as one more file would be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.index import INDEX_ROWS_AT_ONCE, index_tables
from tokflow.exports.options import cut, equal_sizes
from tokflow.exports.shuffled_documents import TOKENS_GATHERED, GatheredTokens, PackedFile
from tokflow.sequences import PackingConfig
from tokflow.sequences.packing import PackingResult, Segments, pack_tails
from tokflow.sequences.segments import (
    SEGMENTS_COLUMNS,
    FileSequences,
    Sequences,
    SpanMask,
    fill_sequences,
)
from tokflow.split import Split
from tokflow.split.permutation import Permutation
from tokflow.store.store import InStore
from tokflow.store.tables import Columns, offsets_of, to_arrow, to_numpy
from tokflow.tokens import positions_of_runs

FILL_COLUMNS = ("sequence", "num_tokens")
"""The columns of segments that tell how full each sequence is."""

INDEX_COLUMNS = ("sequence", "num_tokens", "document", "char_start", "token_in_piece")
"""The columns of segments that the index is made from."""

TOKENS_AT_ONCE = 512 * 2_048
"""Tokens made into sequences at one go; their arrays take some 12 MB."""


@dataclass(frozen=True, kw_only=True)
class PartSequences:
    """The sequences of one part, of which nothing is read before it is asked for.

    Any of them are found alone, so that several processes share them out. In the order of a seed
    memory takes 12 bytes for each segment of the part and 8 for each sequence, beside what is
    gathered at one go.
    """

    part: str
    splits: Sequence[Split]
    files: Sequence[PackedFile]
    """The sequences of each split, or groups of the documents of all; none where nothing is packed.
    """
    packing: PackingConfig
    pad_id: int
    shuffle_seed: int | None = None
    """None: sequences are in the order of the files, those made of tails last."""
    _tables: dict[int, "_Table"] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_sequences(self) -> int:
        """Sequences of the part: those of each file, then those made of all tails."""
        return int(self._firsts[-1])

    @property
    def is_by_file(self) -> bool:
        """True where sequences are in the order of raw files, those made of tails last."""
        return self.shuffle_seed is None and bool(self._packed_files)

    @property
    def of_files(self) -> list[tuple[str, int]]:
        """Key and sequences of each raw file, and last of what is made of tails; of all, where they
        are in another order."""
        if not self.is_by_file:
            return [("", self.num_sequences)]
        keys = [str(split.manifest.partition) for split in self.splits]
        return list(zip([*keys, ""], np.diff(self._firsts).tolist(), strict=True))

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence; 0 where there is none. Files behind the first that has a
        full one are not read."""
        found = 0
        for number in range(len(self.files) + 1):
            columns = self._columns(number, FILL_COLUMNS)
            sequence = columns["sequence"] - columns["sequence"][:1]
            fill = np.bincount(sequence, weights=columns["num_tokens"])
            found = max(found, int(fill.max(initial=0)))
            if found == self.packing.stored_length:
                break
        return found

    @property
    def packing_counts(self) -> dict[str, int]:
        """Counts of the sequences of files and of tails: num_repeated_tokens (those in another
        sequence too, counted once less than they are there), and of documents and, of chats, turns
        and sequences that were cut or left out."""
        return {
            name: num + sum(file.counts.get(f"{self.part}.{name}", 0) for file in self.files)
            for name, num in self._tails.counts.items()
        }

    def sequences(
        self, at_once: int | None = None, *, within: range | None = None, starts_anew: bool = False
    ) -> Iterator[Sequences]:
        """Yield the part's sequences in order, `at_once` at a time; the last may be fewer.

        By default so many that they take some 12 MB. Of those `within`, which may begin and end
        anywhere, the batches are those of all, cut; `starts_anew`: batches of their own.
        """
        within = range(self.num_sequences) if within is None else within
        at_once = at_once or self._at_once
        first = 0 if starts_anew else min(len(within), -within.start % at_once)
        sizes = [first, *equal_sizes(len(within) - first, at_once)]
        for taken in cut(self._filled(within), sizes):
            if batch := list(taken):
                yield Sequences.joined(batch)

    def _filled(self, within: range) -> Iterator[Sequences]:
        """Yield the sequences of some places in order, TOKENS_AT_ONCE or fewer at a time."""
        at_once, packing = self._at_once, self.packing
        tokens = GatheredTokens.of(self.splits)
        masks = GatheredTokens.masks(self.splits)
        step = at_once * max(1, TOKENS_GATHERED // (at_once * packing.stored_length))
        for places in self._stretches(within, step):
            place, starts, lengths = self._segments_at(places)
            token_ids = tokens.take(starts, lengths)
            mask = None if masks is None else masks.take(starts, lengths)
            stops = np.append(0, np.cumsum(lengths)).tolist()
            edges = np.searchsorted(place, [*places[::at_once], places.stop]).tolist()
            for first, last in pairwise(edges):
                here = slice(stops[first], stops[last])
                yield fill_sequences(
                    token_ids[here],
                    place[first:last],
                    lengths[first:last],
                    sequence_length=packing.stored_length,
                    pad_id=self.pad_id,
                    padding_side=packing.padding_side,
                    loss_mask=None if mask is None else mask[here],
                )

    def index(self) -> Iterator[pa.Table]:
        """Yield the index of `sequences` in order: without a seed each table of one file, and the
        tails last; else each of some millions of segments, for each of which the tables of all
        files are read."""
        in_order, num = self.shuffle_seed is None, self.num_sequences
        names = f"{self.part}.num_documents", f"{self.part}.num_cut_pieces"
        num_spans = sum(of.manifest.counts[name] for of in self.splits for name in names)
        step = num if in_order else INDEX_ROWS_AT_ONCE * num // max(1, num + num_spans)
        for places in self._stretches(range(num), max(1, step)):
            of_files = (self._index_of(*of_file) for of_file in self._by_file(places))
            tables = chain.from_iterable(of_files)
            if in_order and places.start < self._firsts[-2]:  # all of one file
                yield from tables
            elif several := list(tables):
                table = pa.concat_tables(several)
                position = to_numpy(table["position"])
                yield table.take(to_arrow(np.argsort(position, kind="stable")))

    def inputs_within(self, within: range | None = None) -> list[InStore]:
        """Return the outputs that the sequences within are made from, those made of tails left out,
        or all: token shard, split and sequences of each file that has some; of groups, all."""
        packed = self._packed_files
        numbers = [*range(len(self.splits))]
        if within is not None and packed:
            found = (number for number, *_ in self._by_file(within))
            numbers = [number for number in found if number < len(packed)]
        splits = [self.splits[number] for number in numbers]
        of_files = (packed[number] for number in numbers if packed)
        return [*(split.shard for split in splits), *splits, *of_files]

    @property
    def _packed_files(self) -> list[FileSequences]:
        """The sequences of each split; none where documents of all are packed in groups."""
        return [file for file in self.files if isinstance(file, FileSequences)]

    @property
    def _at_once(self) -> int:
        return max(1, TOKENS_AT_ONCE // self.packing.stored_length)

    @cached_property
    def _firsts(self) -> npt.NDArray[np.int64]:
        """The ordinal of the first sequence of each file and of tails, and how many there are."""
        of_files = (file.counts[f"{self.part}.num_sequences"] for file in self.files)
        return offsets_of([*of_files, self._tails.packed.num_sequences])

    def _stretches(self, within: range, step: int) -> Iterator[range]:
        """Yield places, `step` at most at a time; in order those of one file."""
        edges = self._firsts if self.shuffle_seed is None else self._firsts[[0, -1]]
        for first, stop in pairwise(edges.tolist()):
            own = range(max(first, within.start), min(stop, within.stop))
            for start in own[::step]:
                yield range(start, min(start + step, own.stop))

    def _segments_at(self, places: range) -> list[npt.NDArray[np.int64]]:
        """Return the place of each segment of the sequences at some places, in order, its first
        token and its tokens."""
        several = []
        for number, own, at in self._by_file(places):
            table = self._table(number)
            segments, counts = _segments_of(own, table.edges)
            lengths = table.num_tokens[segments].astype(np.int64)
            several.append((np.repeat(at, counts), table.start[segments], lengths))
        columns = [np.concatenate(column) for column in zip(*several, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return [column[order] for column in columns]

    def _index_of(
        self, number: int, own: npt.NDArray[np.int64], at: npt.NDArray[np.int64]
    ) -> Iterator[pa.Table]:
        """Yield the index of some sequences of a file, or of tails, at their places."""
        columns = self._columns(number, INDEX_COLUMNS)
        segments, counts = _segments_of(own, self._edges(number, columns["sequence"]))
        if len(segments) < len(columns["sequence"]):
            columns = {name: values[segments] for name, values in columns.items()}
        place = np.repeat(at, counts)
        length, ends = self.packing.stored_length, np.cumsum(columns["num_tokens"])
        starts = ends - columns["num_tokens"]
        first = np.flatnonzero(np.diff(place, prepend=-1))
        begin = starts[first]  # of each sequence
        if self.packing.padding_side == "left":
            begin = np.append(begin[1:], ends[-1:]) - length
        column = starts - np.repeat(begin, np.diff(first, append=len(place)))
        columns = {**columns, "position": place * length + column}
        if number < len(self.files):
            yield from self._index_of_file(number, columns)
            return
        of_file = columns["file"]
        order = np.argsort(of_file, kind="stable")
        ordinals, firsts = np.unique(of_file[order], return_index=True)
        for ordinal, some in zip(ordinals.tolist(), np.split(order, firsts)[1:], strict=True):
            own_columns = {name: values[some] for name, values in columns.items()}
            yield from self._index_of_file(ordinal, own_columns)

    def _index_of_file(self, number: int, columns: Columns) -> Iterator[pa.Table]:
        file = self.files[number]
        row = file.rows()[columns["document"]]
        return index_tables(self.part, file.origins, {**columns, "row": row})

    def _by_file(
        self, places: range
    ) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield the ordinal of each file that has sequences at some places, which of its own they
        are, ascending, and their places; the ordinal after the last file is that of tails."""
        numbers, firsts = np.arange(places.start, places.stop), self._firsts
        if self.shuffle_seed is not None:
            order = Permutation(self.num_sequences, self.shuffle_seed, f"sequences:{self.part}")
            numbers = order.at(numbers)
        ascending = np.argsort(numbers)
        edges = np.searchsorted(numbers[ascending], firsts)
        for number in np.flatnonzero(np.diff(edges)).tolist():
            some = ascending[edges[number] : edges[number + 1]]
            yield number, numbers[some] - firsts[number], some + places.start

    def _table(self, number: int) -> "_Table":
        """Return the segments of a file, or of tails; they are read once."""
        if number not in self._tables:
            columns = self._columns(number, ("sequence", "token_start", "num_tokens"))
            if self.shuffle_seed is None:  # none is asked for again
                self._tables.clear()
            self._tables[number] = _Table(
                edges=self._edges(number, columns["sequence"]),
                start=columns["token_start"] + self._positions[columns.get("file", number)],
                num_tokens=columns["num_tokens"].astype(np.int32),
            )
        return self._tables[number]

    def _columns(self, number: int, names: Sequence[str]) -> Columns:
        """Return columns of the segments of a file; of tails all, and the file that each is of."""
        if number == len(self.files):
            return self._tails.columns
        return self.files[number].segments(self.part, names)

    def _edges(self, number: int, sequence: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        num_sequences = self._firsts[number + 1] - self._firsts[number]
        return np.searchsorted(sequence, np.arange(num_sequences + 1))

    @cached_property
    def _positions(self) -> npt.NDArray[np.int64]:
        """The position in the tokens of all splits at which those of each file begin."""
        if self._packed_files:
            return GatheredTokens.of(self.splits).edges
        return np.zeros(len(self.files), dtype=np.int64)  # groups are of all

    @cached_property
    def _tails(self) -> "Tails":
        """The sequences that are made of the tails of all files, as one more file would be."""
        packing = self.packing
        of_files = [file.tail(self.part) for file in self.files]
        empty = np.zeros(0, dtype=np.int64)
        tails = {
            name: np.concatenate([empty, *(tail[name] for tail in of_files)])
            for name in SEGMENTS_COLUMNS
        }
        whole = Segments(
            span=np.arange(len(tails["sequence"])),
            token_in_span=tails["token_in_piece"],
            **{name: tails[name] for name in ("sequence", "num_tokens", "num_repeated")},
        )
        file = np.repeat(np.arange(len(of_files)), [len(tail["num_tokens"]) for tail in of_files])
        span_start = tails["token_start"] - tails["token_in_piece"]
        masks = GatheredTokens.masks(self.splits)
        mask = None if masks is None else SpanMask(masks, span_start + self._positions[file])
        is_begun = None  # a document's first sequence is there, unless it was dropped
        if self.files and mask is not None and packing.drop_unsupervised:
            finished = (file.segments(self.part, ("document",))["document"] for file in self.files)
            is_begun = np.concatenate(
                [np.isin(tail["document"], of) for tail, of in zip(of_files, finished, strict=True)]
            )
        packed = pack_tails(whole, packing, mask.num_supervised if mask else None, is_begun)
        found = packed.segments
        return Tails(
            columns={
                "file": file[found.span],
                "sequence": found.sequence,
                "num_tokens": found.num_tokens,
                "token_start": span_start[found.span] + found.token_in_span,
                "document": tails["document"][found.span],
                "char_start": tails["char_start"][found.span],
                "token_in_piece": found.token_in_span,
            },
            whole=whole,
            packed=packed,
            mask=mask,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tails:
    """Segments of the sequences made of the tails of all files, in order."""

    columns: Columns
    """Columns of segments, and the ordinal of the file of each."""
    whole: Segments
    """The tails before they are packed."""
    packed: PackingResult
    mask: SpanMask | None
    """The loss mask of the documents of `whole`; None where none are chats."""

    @property
    def counts(self) -> dict[str, int]:
        """Repeated tokens, less those that the files count in their tails; documents and, of chats,
        turns and sequences that were cut or left out."""
        packed, whole = self.packed.segments, self.whole
        num_more = int(packed.num_repeated.sum() - whole.num_repeated.sum())
        counts = {"num_repeated_tokens": num_more, **asdict(self.packed.counts)}
        if self.mask is None:
            del counts["num_dropped_sequences"]
            return counts
        return counts | self.mask.turn_counts(self.whole, self.packed.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """The segments of the sequences of one file, in order."""

    edges: npt.NDArray[np.int64]
    """The first segment of each sequence, and how many there are; (num_sequences + 1,)."""
    start: npt.NDArray[np.int64]
    """The position of its first token in the tokens of all splits; (num_segments,)."""
    num_tokens: npt.NDArray[np.int32]


def _segments_of(
    sequences: npt.NDArray[np.int64], edges: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the segments of some sequences, end to end, and how many each sequence has."""
    first, counts = edges[sequences], edges[sequences + 1] - edges[sequences]
    return positions_of_runs(first, counts), counts

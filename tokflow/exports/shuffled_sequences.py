"""The sequences of one part over all files in the order of a seed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, groupby, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.index import (
    INDEX_COLUMNS,
    INDEX_ROWS_AT_ONCE,
    in_order_of_positions,
    index_of_segments,
)
from tokflow.exports.packed_file import PackedFile
from tokflow.exports.tails import Tails, joined_masks
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.segments import Sequences, fill_sequences
from tokflow.split.permutation import Permutation
from tokflow.tokens.token_source import TokenSource

TOKENS_GATHERED = 2**24
"""Tokens gathered at one go, for each of which every file is opened once: 100 MB, 200 of ids of 4
bytes."""


@dataclass(frozen=True, kw_only=True)
class ShuffledSequences:
    """The sequences of all files and those made of their tails, in the order of a permutation.

    Any of them are found alone, so that several processes share them out. Memory takes 12 bytes
    for each segment of the part and 8 for each sequence, beside what is gathered at one go.
    """

    part: str
    files: Sequence[PackedFile]
    tails: Tails
    packing: PackingConfig
    pad_id: int
    seed: int | None
    """None: in the order of the files, each as it is without a shuffle."""
    _tables: dict[int, "_Table"] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def firsts(self) -> list[int]:
        """The ordinal of the first sequence of each file and of tails, and how many there are."""
        of_files = (file.num_sequences(self.part) for file in self.files)
        return list(accumulate([*of_files, self.tails.num_sequences], initial=0))

    def _numbers_at(self, places: range) -> npt.NDArray[np.int64]:
        """Return of each place the ordinal that its sequence has without a shuffle."""
        ordinals = np.arange(places.start, places.stop)
        if self.seed is None:
            return ordinals
        return Permutation(self.firsts[-1], self.seed, f"sequences:{self.part}").at(ordinals)

    def sequences(self, within: range, at_once: int) -> Iterator[Sequences]:
        """Yield the sequences of some places in order, `at_once` at a time or fewer."""
        length = self.packing.stored_length
        side = self.packing.padding_side
        fill = partial(
            fill_sequences, sequence_length=length, pad_id=self.pad_id, padding_side=side
        )
        step = at_once * max(1, TOKENS_GATHERED // (at_once * length))
        for places in _ranges(within, step):
            gathered = self._gathered(places)
            edges = [*places[::at_once], places.stop]
            for first, last in pairwise(np.searchsorted(gathered.place, edges).tolist()):
                lengths = gathered.num_tokens[first:last]
                taken = gathered.start[first:last], lengths
                mask = None if gathered.masks is None else gathered.masks.take(*taken)
                token_ids, place = gathered.tokens.take(*taken), gathered.place[first:last]
                yield fill(token_ids, place, lengths, loss_mask=mask)

    def _gathered(self, places: range) -> "_Gathered":
        """Return the segments of the sequences at some places; each source is read once."""
        place, num_tokens, tokens, masks = [], [], [], []
        found = self._by_file(places)
        for _, of_files in groupby(found, key=lambda of_file: self._source_id(of_file[0])):
            number, (at, starts, lengths) = self._segments_at(of_files)
            if number < len(self.files):
                source = self.files[number].source
                masked = source.loss_mask_source()
                token_ids = source.token_source().take(starts, lengths)
                mask = None if masked is None else masked.take(starts, lengths)
            else:
                token_ids, mask = self.tails.chosen(starts).tokens(self.files)
            place.append(at)
            num_tokens.append(lengths)
            tokens.append(token_ids)
            masks.append(mask)
        lengths, places_of = np.concatenate(num_tokens), np.concatenate(place)
        in_order = np.argsort(places_of, kind="stable")
        mask = joined_masks(masks, tokens)
        return _Gathered(
            place=places_of[in_order],
            start=(np.cumsum(lengths) - lengths)[in_order],
            num_tokens=lengths[in_order],
            tokens=TokenSource((np.concatenate(tokens),)),
            masks=None if mask is None else TokenSource((mask,)),
        )

    def _source_id(self, number: int) -> int:
        """Return what tells the source of a file's tokens from those of others."""
        return id(self.files[number].source) if number < len(self.files) else 0

    def _segments_at(
        self, of_files: Iterable[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    ) -> tuple[int, list[npt.NDArray[np.int64]]]:
        """Return the segments of sequences of several files, as `_by_file` yields them: the last of
        these, and the place, the first token and the tokens of each; in the order of the places."""
        number, several = 0, []
        for number, own, at in of_files:
            table = self._table(number)
            segments, counts = _segments_of(own, table.edges)
            lengths = table.num_tokens[segments].astype(np.int64)
            several.append((np.repeat(at, counts), table.token_start[segments], lengths))
        columns = [np.concatenate(column) for column in zip(*several, strict=True)]
        if len(several) > 1:
            order = np.argsort(columns[0], kind="stable")
            columns = [column[order] for column in columns]
        return number, columns

    def index(self) -> Iterator[pa.Table]:
        """Yield the index in order, each table of some millions of segments; for each of them the
        tables of all files are read."""
        num_sequences = self.firsts[-1]
        step = max(1, INDEX_ROWS_AT_ONCE * num_sequences // max(1, self._most_segments))
        for places in _ranges(range(num_sequences), step):
            found = self._by_file(places)
            yield from in_order_of_positions(
                table for of_file in found for table in self._index_of(*of_file)
            )

    @property
    def _most_segments(self) -> int:
        """No fewer segments than there are: each begins a document or a sequence."""
        return self.firsts[-1] + sum(file.num_spans(self.part) for file in self.files)

    def _index_of(
        self, number: int, own: npt.NDArray[np.int64], at: npt.NDArray[np.int64]
    ) -> Iterator[pa.Table]:
        """Yield the index of some sequences of a file, or of tails, at their places."""
        is_of_file = number < len(self.files)
        columns = self.tails.columns
        if is_of_file:
            columns = self.files[number].segments(self.part, INDEX_COLUMNS)
        segments, counts = _segments_of(own, self._edges(number, columns["sequence"]))
        place = np.repeat(at, counts)
        if is_of_file:
            chosen = {name: values[segments] for name, values in columns.items()}
            chosen = {**chosen, "sequence": place}
            return index_of_segments(self.part, self.files[number], chosen, self.packing)
        tails = self.tails.chosen(segments)
        tails = replace(tails, columns={**tails.columns, "sequence": place})
        return tails.index(self.files, self.part, self.packing)

    def _by_file(
        self, places: range
    ) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield the ordinal of each file that has sequences at some places, which of its own they
        are, ascending, and their places; the ordinal after the last file is that of tails."""
        numbers, firsts = self._numbers_at(places), self.firsts
        ascending = np.argsort(numbers)
        edges = np.searchsorted(numbers[ascending], firsts)
        for number in np.flatnonzero(np.diff(edges)).tolist():
            some = ascending[edges[number] : edges[number + 1]]
            yield number, numbers[some] - firsts[number], some + places.start

    def _table(self, number: int) -> "_Table":
        """Return the segments of a file, or of tails; they are read once."""
        if number not in self._tables:
            columns = self.tails.columns
            columns = {**columns, "token_start": np.arange(len(columns["sequence"]))}
            if number < len(self.files):
                names = ("sequence", "token_start", "num_tokens")
                columns = self.files[number].segments(self.part, names)
            if self.seed is None:  # none is asked for again
                self._tables.clear()
            self._tables[number] = _Table(
                edges=self._edges(number, columns["sequence"]),
                token_start=columns["token_start"],
                num_tokens=columns["num_tokens"].astype(np.int32),
            )
        return self._tables[number]

    def _edges(self, number: int, sequence: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        num_sequences = self.firsts[number + 1] - self.firsts[number]
        return np.searchsorted(sequence, np.arange(num_sequences + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """The segments of the sequences of one file, in order."""

    edges: npt.NDArray[np.int64]
    """The first segment of each sequence, and how many there are; (num_sequences + 1,)."""
    token_start: npt.NDArray[np.int64]
    """In the source of the file; of tails, which of their segments it is; (num_segments,)."""
    num_tokens: npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gathered:
    """Segments in the order of their sequences' places; arrays (num_segments,), int64."""

    place: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    """The position of its first token in `tokens`."""
    num_tokens: npt.NDArray[np.int64]
    tokens: TokenSource
    masks: TokenSource | None


def _segments_of(
    sequences: npt.NDArray[np.int64], edges: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the segments of some sequences, end to end, and how many each sequence has."""
    first, counts = edges[sequences], edges[sequences + 1] - edges[sequences]
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) + np.repeat(first - (ends - counts), counts), counts


def _ranges(whole: range, step: int) -> Iterator[range]:
    for start in range(whole.start, whole.stop, step):
        yield range(start, min(start + step, whole.stop))

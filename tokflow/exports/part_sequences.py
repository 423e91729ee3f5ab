"""The sequences of one part over all files: those of each file, then those made of all tails."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import accumulate, chain, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.batching import cut, equal_sizes
from tokflow.exports.index import INDEX_COLUMNS, in_order_of_positions, index_of_segments
from tokflow.exports.packed_file import PackedFile
from tokflow.exports.shuffled_sequences import ShuffledSequences
from tokflow.exports.tails import Tails, make_tails
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.packing import PackingCounts
from tokflow.sequences.segments import FileSequences, Sequences, fill_sequences
from tokflow.store.store import Stored

FILL_COLUMNS = ("sequence", "num_tokens")
"""The columns of segments that tell how full each sequence is."""

TOKENS_AT_ONCE = 2_048 * 2_048
"""Tokens made into sequences at one go; their arrays take some 50 MB."""


@dataclass(frozen=True, kw_only=True)
class PartSequences:
    """The sequences of one part, of which nothing is read before it is asked for."""

    part: str
    files: Sequence[PackedFile]
    packing: PackingConfig
    pad_id: int
    shuffle_seed: int | None = None
    """None: sequences are in the order of the files, those made of tails last."""
    inputs: Sequence[Stored] = ()
    """The outputs that any of `files` may be read from, where these are groups of the documents of
    all; else each is read by itself."""

    @property
    def num_sequences(self) -> int:
        """Sequences of the part: those of each file, then those made of all tails."""
        return self._count("num_sequences") + self._tails.num_sequences

    @property
    def num_repeated_tokens(self) -> int:
        """Tokens that are in another sequence too, counted once less than they are there."""
        return self._count("num_repeated_tokens") + self._tails.num_repeated_more

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence; 0 where there is none. Files behind the first that has a
        full one are not read."""
        found = 0
        of_files = (file.segments(self.part, FILL_COLUMNS) for file in self.files)
        for columns in chain(of_files, [self._tails.columns]):
            sequence = columns["sequence"] - columns["sequence"][:1]
            fill = np.bincount(sequence, weights=columns["num_tokens"])
            found = max(found, int(fill.max(initial=0)))
            if found == self.packing.stored_length:
                break
        return found

    @property
    def packing_counts(self) -> PackingCounts:
        """Documents that were cut or left out, in the sequences of files and of tails."""
        names = [field.name for field in fields(PackingCounts)]
        in_files = PackingCounts(**{name: self._count(name) for name in names})
        return in_files + self._tails.counts

    def sequences(
        self, at_once: int | None = None, *, within: range | None = None
    ) -> Iterator[Sequences]:
        """Yield the part's sequences in order, `at_once` at a time; the last may be fewer.

        By default so many that they take some 50 MB. Of those `within`, which may begin and end
        anywhere, the batches are those of all, cut.
        """
        within = range(self.num_sequences) if within is None else within
        at_once = at_once or self._at_once
        first = min(len(within), -within.start % at_once)
        sizes = [first, *equal_sizes(len(within) - first, at_once)]
        found = self._sequences_as_stored(within)
        if self._shuffled is not None:
            found = self._shuffled.sequences(within, self._at_once)
        for taken in cut(found, sizes):
            if batch := list(taken):
                yield Sequences.joined(batch)

    def index(self) -> Iterator[pa.Table]:
        """Yield the index of `sequences` in order: without a shuffle each table of one file, and
        the tails last."""
        if self._shuffled is not None:
            yield from self._shuffled.index()
            return
        for file, first_sequence in zip(self.files, self._firsts, strict=False):
            columns = file.segments(self.part, INDEX_COLUMNS)
            columns["sequence"] = columns["sequence"] + first_sequence
            yield from index_of_segments(self.part, file, columns, self.packing)
        # Sequences made of tails hold documents of many files.
        yield from in_order_of_positions(
            self._tails.index(self.files, self.part, self.packing, first_sequence=self._firsts[-1])
        )

    @property
    def _at_once(self) -> int:
        return max(1, TOKENS_AT_ONCE // self.packing.stored_length)

    def _count(self, name: str) -> int:
        return sum(file.counts[f"{self.part}.{name}"] for file in self.files)

    def inputs_within(self, within: range) -> Sequence[Stored]:
        """Return the outputs that the sequences within are made from, those made of tails left out:
        token shard, split and sequences of each file that has some; of a shuffle, all."""
        if self.inputs:
            return self.inputs
        if self._shuffled is not None:
            within = range(self.num_sequences)
        read = (file for number, file in enumerate(self.files) if self._own(within, number))
        of_files = (file for file in read if isinstance(file, FileSequences))
        return [each for file in of_files for each in (file.split.shard, file.split, file)]

    @cached_property
    def _shuffled(self) -> ShuffledSequences | None:
        """The sequences in the order of the seed or, where groups have the tokens of all files, in
        that of the groups; None where files are read one after another."""
        if self.shuffle_seed is None and not self.inputs:
            return None
        return ShuffledSequences(
            part=self.part,
            files=self.files,
            tails=self._tails,
            packing=self.packing,
            pad_id=self.pad_id,
            seed=self.shuffle_seed,
        )

    @cached_property
    def _firsts(self) -> list[int]:
        """The ordinal of the first sequence of each file, and of those made of tails."""
        return [0, *accumulate(file.num_sequences(self.part) for file in self.files)]

    def _own(self, within: range, number: int) -> range:
        """Return which of a file's sequences, counted from 0 there, are within; of the file after
        the last, of those made of tails."""
        first, *stop = self._firsts[number : number + 2]
        end = min(within.stop, *stop) if stop else within.stop
        return range(max(within.start - first, 0), max(end - first, 0))

    def _sequences_as_stored(self, within: range) -> Iterator[Sequences]:
        length = self.packing.stored_length
        side = self.packing.padding_side
        fill = partial(
            fill_sequences, sequence_length=length, pad_id=self.pad_id, padding_side=side
        )
        for number, file in enumerate(self.files):
            if not (own := self._own(within, number)):
                continue
            source, masks = file.source.token_source(), file.source.loss_mask_source()
            columns = file.segments(self.part, ("sequence", "token_start", "num_tokens"))
            sequence, starts, lengths = columns.values()
            for some in self._batches(sequence, own):
                segments = starts[some], lengths[some]
                mask = None if masks is None else masks.take(*segments)
                yield fill(source.take(*segments), sequence[some], lengths[some], loss_mask=mask)
                for mapped in filter(None, (source, masks)):
                    mapped.release()
        if not (own := self._own(within, len(self.files))):
            return
        tails = self._tails
        for some in self._batches(tails.columns["sequence"], own):
            some_tails = tails.chosen(some)
            token_ids, mask = some_tails.tokens(self.files)
            columns = some_tails.columns
            yield fill(token_ids, columns["sequence"], columns["num_tokens"], loss_mask=mask)

    def _batches(self, sequence: npt.NDArray[np.int64], within: range) -> Iterator[slice]:
        """Yield the segments of some sequences at a time."""
        edges = [*within[:: self._at_once], within.stop]
        for start, stop in pairwise(np.searchsorted(sequence, edges).tolist()):
            yield slice(start, stop)

    @cached_property
    def _tails(self) -> Tails:
        """The sequences made of the tails of all files."""
        return make_tails(self.files, self.part, self.packing)

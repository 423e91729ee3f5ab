"""The sequences of one part over all files: those of each file, then those made of all tails."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.batching import cut, equal_sizes
from tokflow.exports.index import index_tables
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.packing import PackingCounts, Segments, pack_tails
from tokflow.sequences.segments import SEGMENTS_COLUMNS, FileSequences, Sequences, fill_sequences
from tokflow.split.spans import Split
from tokflow.store.arrow import to_arrow, to_numpy
from tokflow.store.integrity import Stored
from tokflow.store.tables import Columns
from tokflow.tokens.token_source import TokenSource

TOKENS_AT_ONCE = 2_048 * 2_048
"""Tokens made into sequences at one go; their arrays take some 50 MB."""

INDEX_COLUMNS = ("sequence", "num_tokens", "document", "char_start", "token_in_piece")


@dataclass(frozen=True, kw_only=True)
class PartSequences:
    """The sequences of one part, of which nothing is read before it is asked for."""

    part: str
    files: Sequence[FileSequences]
    packing: PackingConfig
    pad_id: int

    @property
    def num_sequences(self) -> int:
        """Sequences of the part: those of each file, then those made of all tails."""
        return self._count("num_sequences") + self._tails.num_sequences

    @property
    def num_repeated_tokens(self) -> int:
        """Tokens that are in another sequence too, counted once less than they are there."""
        return self._count("num_repeated_tokens") + self._tails.num_repeated_more

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
        for taken in cut(self._sequences_as_stored(within), sizes):
            if batch := list(taken):
                yield Sequences.joined(batch)

    def index(self) -> Iterator[pa.Table]:
        """Yield the index of `sequences` in order, each table of one file; the tails come last."""
        for file, first_sequence in zip(self.files, self._firsts, strict=False):
            columns = file.segments(self.part, INDEX_COLUMNS)
            yield from self._index_of(file.split, first_sequence, columns)
        tables = [
            table
            for ordinal, columns in self._tails.of_files()
            for table in self._index_of(self.files[ordinal].split, self._firsts[-1], columns)
        ]
        if tables:  # sequences made of tails hold documents of many files
            table = pa.concat_tables(tables)
            yield table.take(to_arrow(np.argsort(to_numpy(table["position"]), kind="stable")))

    @property
    def _at_once(self) -> int:
        return max(1, TOKENS_AT_ONCE // self.packing.stored_length)

    def _count(self, name: str) -> int:
        return sum(file.manifest.counts[f"{self.part}.{name}"] for file in self.files)

    def inputs_within(self, within: range) -> list[Stored]:
        """Return the outputs that the sequences within are made from: token shard, split and
        sequences of each file that has a token in them; of those made of tails, the sequences of
        all files, which were packed together."""
        made_of_tails = self._own(within, len(self.files))
        edges = made_of_tails.start, made_of_tails.stop
        segments = slice(*np.searchsorted(self._tails.columns["sequence"], edges))
        tails_of = set(self._tails.file[segments].tolist())
        numbers = range(len(self.files))
        read = [self.files[n] for n in numbers if n in tails_of or self._own(within, n)]
        splits = [file.split for file in read]
        packed = self.files if made_of_tails else read
        return [*(split.shard for split in splits), *splits, *packed]

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
        fill = partial(fill_sequences, sequence_length=length, pad_id=self.pad_id)
        for number, file in enumerate(self.files):
            if not (own := self._own(within, number)):
                continue
            source, masks = file.split.token_source(), file.split.loss_mask_source()
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
            token_ids, mask = self._tokens_of(some_tails)
            columns = some_tails.columns
            yield fill(token_ids, columns["sequence"], columns["num_tokens"], loss_mask=mask)

    def _batches(self, sequence: npt.NDArray[np.int64], within: range) -> Iterator[slice]:
        """Yield the segments of some sequences at a time."""
        edges = [*within[:: self._at_once], within.stop]
        for start, stop in pairwise(np.searchsorted(sequence, edges).tolist()):
            yield slice(start, stop)

    @cached_property
    def _tails(self) -> "_Tails":
        """The sequences made of the tails of all files."""
        of_files = [file.tail(self.part) for file in self.files]
        num_of_file = [len(tail["num_tokens"]) for tail in of_files]
        empty = np.zeros(0, dtype=np.int64)
        tails = {
            name: np.concatenate([empty, *(tail[name] for tail in of_files)])
            for name in SEGMENTS_COLUMNS
        }
        of_tails = Segments(
            sequence=tails["sequence"],
            span=np.arange(len(tails["sequence"])),
            token_in_span=tails["token_in_piece"],
            num_tokens=tails["num_tokens"],
            num_repeated=tails["num_repeated"],
        )
        packed = pack_tails(of_tails, self.packing)
        segments = packed.segments
        span_start = tails["token_start"] - tails["token_in_piece"]
        return _Tails(
            file=np.repeat(np.arange(len(of_files)), num_of_file)[segments.span],
            columns={
                "sequence": segments.sequence,
                "num_tokens": segments.num_tokens,
                "column": _columns(segments.sequence, segments.num_tokens),
                "token_start": span_start[segments.span] + segments.token_in_span,
                "document": tails["document"][segments.span],
                "char_start": tails["char_start"][segments.span],
                "token_in_piece": segments.token_in_span,
            },
            num_sequences=packed.num_sequences,
            num_repeated_more=int(segments.num_repeated.sum() - of_tails.num_repeated.sum()),
            counts=packed.counts,
        )

    def _tokens_of(
        self, tails: "_Tails"
    ) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.uint8] | None]:
        """Return the tokens of segments of tails, and their loss mask, if they have one."""
        taken, taken_masks = [], []
        for ordinal, columns in tails.of_files():
            split = self.files[ordinal].split
            segments = columns["token_start"], columns["num_tokens"]
            taken.append(split.token_source().take(*segments))
            if (masks := split.loss_mask_source()) is not None:
                taken_masks.append(masks.take(*segments))
        return tails.in_order(taken), tails.in_order(taken_masks) if taken_masks else None

    def _index_of(self, split: Split, first_sequence: int, columns: Columns) -> Iterator[pa.Table]:
        """Yield the index of segments of one file."""
        sequence, num_tokens = columns["sequence"], columns["num_tokens"]
        column = columns["column"] if "column" in columns else _columns(sequence, num_tokens)
        position = (first_sequence + sequence) * self.packing.stored_length + column
        row = to_numpy(split.shard.documents(["row"])["row"])[columns["document"]]
        kept = {name: columns[name] for name in ("num_tokens", "char_start", "token_in_piece")}
        of_index = {"position": position, "row": row, **kept}
        return index_tables(self.part, split.shard.origins, of_index)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tails:
    """Segments of the sequences made of the tails of all files, in order."""

    file: npt.NDArray[np.int64]
    """Ordinal of the file each is of."""
    columns: Columns
    """As a file has them, and `column`, where in its sequence each segment begins."""
    num_sequences: int
    num_repeated_more: int
    """Repeated tokens of these sequences, less those that the files count in their tails."""
    counts: PackingCounts

    def chosen(self, which: Any) -> "_Tails":
        """Return some of the segments."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return replace(self, file=self.file[which], columns=columns)

    def of_files(self) -> Iterator[tuple[int, Columns]]:
        """Yield the ordinal of each file that has a segment, and its segments in order."""
        order = np.argsort(self.file, kind="stable")
        ordinals, firsts = np.unique(self.file[order], return_index=True)
        for ordinal, some in zip(ordinals.tolist(), np.split(order, firsts)[1:], strict=True):
            yield ordinal, self.chosen(some).columns

    def in_order(self, taken: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the tokens of the segments, given those of each file as `of_files` yields it."""
        order = np.argsort(self.file, kind="stable")
        lengths = self.columns["num_tokens"]
        starts = np.empty_like(lengths)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        joined = np.concatenate(taken)
        return TokenSource((joined,)).take(starts, lengths)


def _columns(
    sequence: npt.NDArray[np.int64], num_tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return where in its sequence each segment begins."""
    starts: npt.NDArray[np.int64] = np.cumsum(num_tokens) - num_tokens
    is_first = np.diff(sequence, prepend=-1) != 0
    row_lengths = np.diff(np.flatnonzero(is_first), append=len(sequence))
    starts -= np.repeat(starts[is_first], row_lengths)
    return starts

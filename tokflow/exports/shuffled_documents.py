"""The documents of one part over all files in the order of a seed, and in groups, each packed by
itself as the documents of a file are."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tokflow.sequences import PackingConfig
from tokflow.sequences.packing import Segments
from tokflow.sequences.segments import (
    NO_MASK,
    SEGMENTS_COLUMNS,
    FileSequences,
    SpanMask,
    pack_and_count,
)
from tokflow.split import SPAN_COLUMNS, Split
from tokflow.split.permutation import document_keys
from tokflow.store.integrity import clear_when_damaged, is_compared
from tokflow.store.tables import Columns, offsets_of, to_numpy
from tokflow.tokens import TokenSource
from tokflow.tokens.shard import Origins

DOCUMENTS_AT_ONCE = 2**20

TOKENS_GATHERED = 2**24
"""Tokens gathered at one go, for each of which every file is opened once: 35 MB, 70 of ids of 4
bytes, and a third of it for where they are."""

GROUP_TOKENS = 2**26
"""Most tokens of a group of documents, which has between half of it and all: 130 MB, or 270 of ids
of 4 bytes, and 200,000 documents of some hundred words. A file that comes or goes moves no other
document to another group until the groups become twice as many, or half."""

KEY_BITS = 63
"""Bits of a document's key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionDocuments:
    """The documents that one partition has in a part, or some that several have, in order; arrays
    (num_documents,), int64."""

    origins: Origins
    """The raw files that the rows are of."""
    row: npt.NDArray[np.int64]
    """Row of each in `origins`: that of the partition's token shard, or of all shards, end to
    end."""
    char_start: npt.NDArray[np.int64]
    """Code points of the document before it: 0, unless the split cut the document."""
    token_start: npt.NDArray[np.int64]
    """Position of its first token in the `GatheredTokens` of all splits."""
    num_tokens: npt.NDArray[np.int64]
    """BOS and EOS included; 0 of an empty document that has neither."""

    def chosen(self, which: slice | npt.NDArray[np.int64]) -> "PartitionDocuments":
        """Return some of the documents."""
        arrays = {of.name: getattr(self, of.name)[which] for of in fields(self)[1:]}
        return replace(self, **arrays)


def documents_in_order(part: str, splits: Sequence[Split]) -> Iterator[PartitionDocuments]:
    """Yield the documents of a part, those of one split at a time."""
    edges = offsets_of([split.num_positions for split in splits])
    for split, edge in zip(splits, edges, strict=False):
        table = split.shard.documents(["row", *SPAN_COLUMNS])
        spans = split.spans(part, table)
        yield PartitionDocuments(
            origins=split.shard.origins,
            row=to_numpy(table["row"])[spans.document],
            char_start=spans.char_start,
            token_start=spans.token_start + edge,
            num_tokens=spans.num_tokens,
        )


def memory_bytes() -> int:
    """Return the memory of this machine; where that cannot be known, more than any has."""
    if not hasattr(os, "sysconf"):
        return 2**63
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class GatheredTokens:
    """The token sources of splits, or their loss masks, end to end.

    A position counts from the first token of the first split. Each file is open only while it is
    read.
    """

    splits: Sequence[Split]
    edges: npt.NDArray[np.int64] = field(repr=False, compare=False)
    """The position at which each split begins, and the end of the last."""
    of_mask: bool = False
    """True: positions are looked up in the loss mask."""
    no_mask: int = 1
    """Value of the tokens of a split that has no loss mask."""

    @classmethod
    def of(cls, splits: Sequence[Split], *, of_mask: bool = False) -> "GatheredTokens":
        """Return the tokens of splits, or their loss mask."""
        return cls(splits, offsets_of([split.num_positions for split in splits]), of_mask)

    @classmethod
    def masks(cls, splits: Sequence[Split]) -> "GatheredTokens | None":
        """Return the loss masks of splits as `SpanMask` reads them; None where none has one."""
        if not any(split.shard.has_loss_mask for split in splits):
            return None
        return replace(cls.of(splits, of_mask=True), no_mask=NO_MASK)

    def take(
        self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any]:
        """Return the tokens of many spans or segments, end to end; each file is read once,
        forwards."""
        some = np.flatnonzero(lengths)
        order = some[np.argsort(starts[some], kind="stable")]
        of_splits = np.searchsorted(starts[order], self.edges)
        numbers = np.flatnonzero(np.diff(of_splits)).tolist()
        if len(numbers) == 1 and (starts[1:] >= starts[:-1]).all():
            [number] = numbers
            if (source := self._source(self.splits[number])) is not None:
                return source.take(starts - self.edges[number], lengths)  # of neighbours a view
        dtype = np.dtype(np.uint8) if self.of_mask else self.splits[0].shard.dtype
        found = np.full(lengths.sum(), self.no_mask, dtype=dtype)
        is_large = self.edges[-1] * dtype.itemsize > memory_bytes() // 2
        at = np.cumsum(lengths) - lengths
        for number in numbers:
            here = order[of_splits[number] : of_splits[number + 1]]
            source = self._source(self.splits[number])
            if source is None:
                continue
            spans = starts[here] - self.edges[number], lengths[here]
            if is_large:
                source.expect(*spans)
            source.fill(found, at[here], *spans)
            source.release()
        return found

    def release(self) -> None:
        """Do nothing: what was read is given back already."""

    def _source(self, split: Split) -> TokenSource | None:
        return split.loss_mask_source() if self.of_mask else split.token_source()


@dataclass(frozen=True, slots=True)
class ShuffledDocuments:
    """The documents of one part in one order of all files, which their keys decide.

    Nothing is read before it is asked for. Memory takes 24 bytes for each document of the part, 48
    while they are put into order, beside what is gathered at one go.
    """

    part: str
    splits: Sequence[Split]
    seed: int
    digest: str
    """Cache key: a hash of the splits and the seed."""

    @property
    def group_bits(self) -> int:
        """Leading bits of a document's key that are the number of its group."""
        name = f"{self.part}.num_tokens"
        num_tokens = sum(split.manifest.counts[name] for split in self.splits)
        return (max(0, num_tokens - 1) // GROUP_TOKENS).bit_length()

    def groups(self, packing: PackingConfig, *, is_kept: bool) -> list["DocumentGroup"]:
        """Return the groups of the documents, in order, each packed when it is asked for; see
        `DocumentGroup`."""
        return [
            DocumentGroup(source=self, number=number, packing=packing, is_kept=is_kept)
            for number in range(1 << self.group_bits)
        ]

    def documents(self) -> Iterator[PartitionDocuments]:
        """Yield the documents in order, some at a time."""
        documents = self.table().documents
        for first in range(0, len(documents.row), DOCUMENTS_AT_ONCE):
            yield documents.chosen(slice(first, first + DOCUMENTS_AT_ONCE))

    @property
    def key(self) -> tuple[str, bool]:
        """Cache key: tables read from files that were compared with their checksums serve every
        export, tables of files that were not serve none."""
        compared = self.digest, True
        is_known = self.part in _tables.get(compared, ())
        return compared if is_known else (self.digest, is_compared())

    def table(self) -> "DocumentTable":
        """Return where the documents are; it is made once in each process, and kept until another
        order is asked for."""
        if (key := self.key) not in _tables:
            _tables.clear()
        of_parts = _tables.setdefault(key, {})
        if self.part not in of_parts:
            of_parts[self.part] = _make_table(self)
        return of_parts[self.part]


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """The documents of one part in order, of all partitions."""

    documents: PartitionDocuments
    group_edges: npt.NDArray[np.int64]
    """The first document of each group, and how many there are; (num_groups + 1,)."""


_tables: dict[tuple[str, bool], dict[str, DocumentTable]] = {}
"""Cached tables of the last order, by cache key and part."""
clear_when_damaged.append(_tables.clear)


def _make_table(of: ShuffledDocuments) -> DocumentTable:
    names = f"{of.part}.num_documents", f"{of.part}.num_cut_pieces"
    num = sum(split.manifest.counts[name] for split in of.splits for name in names)
    keys, starts, sizes, rows = (np.empty(num, dtype=np.int64) for _ in range(4))
    char_starts = np.broadcast_to(np.int64(0), num)  # takes no memory
    raw_files, first_rows, first, first_row = list[str](), list[int](), 0, 0
    for some in documents_in_order(of.part, of.splits):
        here = slice(first, first := first + len(some.row))
        keys[here] = document_keys(some.origins, some.row, of.seed)
        starts[here], sizes[here] = some.token_start, some.num_tokens
        rows[here] = some.row + first_row
        if some.char_start.any():
            char_starts = char_starts if char_starts.flags.writeable else char_starts.copy()
            char_starts[here] = some.char_start
        raw_files += some.origins.raw_files
        first_rows += [own + first_row for own in some.origins.first_rows]
        first_row += max(int(some.row.max(initial=-1)), some.origins.first_rows[-1]) + 1
    order = np.argsort(keys, kind="stable")  # two of one key stay in the order of their files
    inner_edges = np.arange(1, 1 << of.group_bits) << (KEY_BITS - of.group_bits)
    group_edges = [0, *np.searchsorted(keys, inner_edges, sorter=order).tolist(), num]
    del keys  # before others take its room
    starts = starts[order]
    sizes = sizes[order]
    rows = rows[order]
    documents = PartitionDocuments(
        origins=Origins(raw_files, first_rows),
        row=rows,
        char_start=char_starts[order] if char_starts.flags.writeable else char_starts,
        token_start=starts,
        num_tokens=sizes,
    )
    return DocumentTable(documents, np.array(group_edges, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class DocumentGroup:
    """The documents of a part whose keys begin with the same bits, packed as those of a file.

    Packed when it is asked for. Its segments, 20 bytes each, are kept until another group is packed
    or, with `is_kept`, one of another order or packing.
    """

    source: ShuffledDocuments
    number: int
    packing: PackingConfig
    is_kept: bool

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Counts of the group, named as in the manifest of a file's sequences."""
        return self._packed.counts

    @property
    def origins(self) -> Origins:
        """The raw files that `rows` are of."""
        return self.source.table().documents.origins

    def rows(self) -> npt.NDArray[np.int64]:
        """Return the row of each document of all groups."""
        return self.source.table().documents.row

    def segments(self, part: str, columns: Sequence[str] = SEGMENTS_COLUMNS) -> Columns:
        """Return the segments of the finished sequences, in the order of these."""
        return self._columns(columns, slice(0, self._packed.first_of_tail))

    def tail(self, part: str) -> Columns:
        """Return the segments that fill no sequence of this group."""
        return self._columns(SEGMENTS_COLUMNS, slice(self._packed.first_of_tail, None))

    @property
    def _documents(self) -> range:
        """Ordinals of its documents among those of all groups."""
        edges = self.source.table().group_edges
        return range(int(edges[self.number]), int(edges[self.number + 1]))

    def _columns(self, names: Sequence[str], which: slice) -> Columns:
        some = self._packed.segments.chosen(which)
        document = some.span.astype(np.int64) + self._documents.start
        documents = self.source.table().documents.chosen(document)
        found = {
            "sequence": some.sequence,
            "token_start": documents.token_start + some.token_in_span,
            "num_tokens": some.num_tokens,
            "document": document,
            "char_start": documents.char_start,
            "token_in_piece": some.token_in_span,
            "num_repeated": some.num_repeated,
        }
        return {name: found[name].astype(np.int64, copy=False) for name in names}

    @property
    def _packed(self) -> "_PackedGroup":
        source = self.source
        key = source.key, self.packing.model_dump_json(), source.part, self.number
        if key in _packed_groups:
            return _packed_groups[key]
        other = next(iter(_packed_groups), key)
        if not self.is_kept or other[:2] != key[:2]:
            _packed_groups.clear()
        own = self._documents
        documents = source.table().documents.chosen(slice(own.start, own.stop))
        masks = GatheredTokens.masks(source.splits)
        mask = None if masks is None else SpanMask(masks, documents.token_start)
        packed, counts = pack_and_count(documents.num_tokens, self.packing, mask)
        segments = packed.segments
        small = {of.name: getattr(segments, of.name).astype(np.int32) for of in fields(segments)}
        _packed_groups[key] = _PackedGroup(
            segments=Segments(**small),
            first_of_tail=int(np.searchsorted(segments.sequence, packed.num_sequences)),
            counts={f"{source.part}.{name}": num for name, num in counts.items()},
        )
        return _packed_groups[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class _PackedGroup:
    """The segments of a group, those of its tail last."""

    segments: Segments
    """Arrays of int32; `span` is the ordinal of the document in the group."""
    first_of_tail: int
    counts: Mapping[str, int]


_packed_groups: dict[tuple[tuple[str, bool], str, str, int], _PackedGroup] = {}
"""Packed groups by the key of the order, the packing, the part and the number."""
clear_when_damaged.append(_packed_groups.clear)


PackedFile: TypeAlias = FileSequences | DocumentGroup
"""The sequences of one file, or of a group of shuffled documents, and its tail."""

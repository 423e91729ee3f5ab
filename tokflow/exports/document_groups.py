"""Groups of shuffled documents, each packed by itself as the documents of a file are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.exports.shuffled_documents import ShuffledDocuments
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.packing import pack_spans
from tokflow.sequences.segments import SEGMENTS_COLUMNS, counts_of
from tokflow.store.integrity import clear_when_damaged
from tokflow.store.tables import Columns
from tokflow.tokens.origins import Origins


@dataclass(frozen=True, kw_only=True)
class DocumentGroup:
    """The documents of a part whose keys begin with the same bits, packed; see `PackedFile`.

    Packed when it is asked for. Its segments, 20 bytes each, are kept until another group is packed
    or, with `is_kept`, one of another order or packing.
    """

    source: ShuffledDocuments
    number: int
    packing: PackingConfig
    is_kept: bool

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """As the manifest of a file's sequences has them."""
        return self._packed.counts

    @property
    def origins(self) -> Origins:
        """The raw files that `rows` are of."""
        return self.source.table().origins

    def rows(self) -> npt.NDArray[np.int64]:
        """Return the row of each document of all groups."""
        return self.source.table().row

    def num_sequences(self, part: str) -> int:
        """Return the number of finished sequences; its tail is not among them."""
        return self.counts[f"{part}.num_sequences"]

    def num_spans(self, part: str) -> int:
        """Return how many documents there are; a span of a cut one counts as such."""
        return len(self._documents)

    def segments(self, part: str, columns: Sequence[str] = SEGMENTS_COLUMNS) -> Columns:
        """Return the segments of the finished sequences, in the order of these."""
        return self._columns(columns, slice(0, self._packed.first_of_tail))

    def tail(self, part: str) -> Columns:
        """Return the segments that fill no sequence of this group."""
        return self._tail

    @cached_property
    def _tail(self) -> Columns:
        return self._columns(SEGMENTS_COLUMNS, slice(self._packed.first_of_tail, None))

    @property
    def _documents(self) -> range:
        """Which of the documents of all groups are its own."""
        edges = self.source.table().group_edges
        return range(int(edges[self.number]), int(edges[self.number + 1]))

    def _columns(self, names: Sequence[str], which: slice) -> Columns:
        packed, table = self._packed, self.source.table()
        document = packed.span[which].astype(np.int64) + self._documents.start
        made: dict[str, Callable[[], npt.NDArray[Any]]] = {
            "token_start": lambda: table.start[document] + packed.token_in_piece[which],
            "document": lambda: document,
            "char_start": lambda: table.char_start_of(document),
        }

        def column(name: str) -> npt.NDArray[Any]:
            return made[name]() if name in made else getattr(packed, name)[which].astype(np.int64)

        return {name: column(name) for name in names}

    @property
    def _packed(self) -> "_PackedGroup":
        source = self.source
        key = source.key, self.packing.model_dump_json(), source.part, self.number
        if key not in _packed_groups:
            other = next(iter(_packed_groups), key)
            if not self.is_kept or other[:2] != key[:2]:
                _packed_groups.clear()
            _packed_groups[key] = self._pack()
        return _packed_groups[key]

    def _pack(self) -> "_PackedGroup":
        own = self._documents
        packed = pack_spans(self.source.table().num_tokens[own.start : own.stop], self.packing)
        segments = packed.segments
        as_int32 = {
            "sequence": segments.sequence,
            "span": segments.span,
            "token_in_piece": segments.token_in_span,
            "num_tokens": segments.num_tokens,
            "num_repeated": segments.num_repeated,
        }
        return _PackedGroup(
            **{name: values.astype(np.int32) for name, values in as_int32.items()},
            first_of_tail=int(np.searchsorted(segments.sequence, packed.num_sequences)),
            counts=counts_of(self.source.part, packed, self.packing.stored_length),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _PackedGroup:
    """The segments of a group, those of its tail last; arrays (num_segments,), int32."""

    sequence: npt.NDArray[np.int32]
    span: npt.NDArray[np.int32]
    """Ordinal of the document in the group."""
    token_in_piece: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int32]
    num_repeated: npt.NDArray[np.int32]
    first_of_tail: int
    counts: Mapping[str, int]


_packed_groups: dict[tuple[tuple[str, bool], str, str, int], _PackedGroup] = {}
"""By the key of the order, the packing, the part and the number."""
clear_when_damaged(_packed_groups.clear)


def groups_of(
    source: ShuffledDocuments, packing: PackingConfig, *, is_kept: bool
) -> list[DocumentGroup]:
    """Return the groups of a part's documents, in their order."""
    numbers = range(1 << source.group_bits)
    return [
        DocumentGroup(source=source, number=number, packing=packing, is_kept=is_kept)
        for number in numbers
    ]

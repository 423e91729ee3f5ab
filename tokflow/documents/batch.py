"""Batches of documents, as `read_documents` gives them, and the rejects beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of characters of documents, some for each; in code points, int64."""

    offsets: npt.NDArray[np.int64]
    """Shape (num_documents + 1,), offsets[0] = 0: which spans are each document's."""
    starts: npt.NDArray[np.int64]
    """Shape (num_spans,), counted from the start of the document; ascending in each."""
    stops: npt.NDArray[np.int64]
    """Shape (num_spans,)."""

    @classmethod
    def of(cls, spans: Sequence[Sequence[tuple[int, int]]]) -> "Spans":
        """Return spans given as (start, stop), a list for each document."""
        offsets = np.zeros(len(spans) + 1, dtype=np.int64)
        np.cumsum([len(of_document) for of_document in spans], out=offsets[1:])
        flat = [span for of_document in spans for span in of_document]
        edges = np.array(flat, dtype=np.int64).reshape(-1, 2)
        return cls(offsets, edges[:, 0].copy(), edges[:, 1].copy())

    @classmethod
    def joined(cls, spans: Sequence["Spans"]) -> "Spans":
        """Return the spans of all documents, one after another."""
        counts = np.concatenate([np.diff(some.offsets) for some in spans])
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        starts = np.concatenate([some.starts for some in spans])
        return cls(offsets, starts, np.concatenate([some.stops for some in spans]))

    def __getitem__(self, kept: slice) -> "Spans":
        """Return the spans of some documents, end to end."""
        offsets = self.offsets[kept.start : kept.stop + 1]
        spans = slice(int(offsets[0]), int(offsets[-1]))
        return Spans(offsets - offsets[0], self.starts[spans], self.stops[spans])

    def document(self, index: int) -> list[tuple[int, int]]:
        """Return the spans of one document as (start, stop)."""
        kept = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return list(zip(self.starts[kept].tolist(), self.stops[kept].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one raw file in their order. Every array has shape (num_documents,)."""

    rows: npt.NDArray[np.int64]
    """Ordinal of each document in the raw file, ascending; rejects leave a gap."""
    texts: pa.LargeStringArray
    """Valid UTF-8 without nulls, laid end to end; the array's own `offset` may be above 0."""
    num_chars: npt.NDArray[np.int64]
    """Unicode code points of each document."""
    loss_spans: Spans | None = None
    """Of chats: the characters that count in the loss; None: all of them."""
    spelt: Spans | None = None
    """Of texts that a chat template wrote: where what it was given, and not the template itself,
    spells special tokens. None for all other texts."""
    records: npt.NDArray[np.int64] | None = None
    """Of documents that a transform made: the ordinal in its raw file of the record that each is
    of, ascending; None where the row says it."""
    tokens: Any = None
    """The `TokenBatch` of the documents, where a limit of tokens is counted; else None, and the
    tokens are made after the reading."""

    def slice(self, start: int, end: int) -> "Batch":
        """Return the documents `start` to `end` of the batch, without a copy."""
        end = min(end, len(self.rows))
        kept: list[Any] = [of if of is None else of[start:end] for of in self._parts()]
        return Batch(*kept)

    def moved(self, rows: int) -> "Batch":
        """Return the same, so many rows further on."""
        return replace(self, rows=self.rows + rows)

    @staticmethod
    def joined(batches: Sequence["Batch"]) -> "Batch":
        """Return the documents of all batches, which are of one dataset, in one."""
        if len(batches) == 1:
            return batches[0]
        return Batch(*map(_joined, zip(*(batch._parts() for batch in batches), strict=True)))

    def _parts(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]


def _joined(parts: Sequence[Any]) -> Any:
    """Return parts of batches, one after another; None where no batch has one."""
    some = [part for part in parts if part is not None]
    if not some:
        return None
    if isinstance(some[0], np.ndarray):
        return np.concatenate(some)
    return pa.concat_arrays(some) if isinstance(some[0], pa.Array) else some[0].joined(some)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A bad document that was set aside."""

    row: int
    """Ordinal in its raw file, or in the range of it that is read; no document takes it."""
    line: int | None
    """Line of the decompressed file, or of the range, from 1; null where the format has none."""
    byte_offset: int | None
    """Byte of the decompressed file, of the record's first byte."""
    reason: str
    """The expected and the found of its error."""
    raw_file: str | None = None
    """The key of its raw file, where a partition is a group of them."""
    record: int | None = None
    """With a transform: the ordinal of the record, as `row` counts; else the row says it."""

    def moved(self, rows: int, lines: int, records: int) -> "Reject":
        """Return the same, so many rows, lines and records further on in the file."""
        line = None if self.line is None else self.line + lines
        record = None if self.record is None else self.record + records
        return replace(self, row=self.row + rows, line=line, record=record)

"""Sequences made of tails: what fills no sequence of its file, packed when an export is made."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.index import columns_of_segments, index_of_segments
from tokflow.exports.packed_file import PackedFile
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.packing import PackingCounts, Segments, pack_tails
from tokflow.sequences.segments import SEGMENTS_COLUMNS
from tokflow.store.tables import Columns
from tokflow.tokens.token_source import TokenSource


@dataclass(frozen=True, kw_only=True, slots=True)
class Tails:
    """Segments of the sequences made of the tails of all files, in order."""

    file: npt.NDArray[np.int64]
    """Ordinal of the file each is of."""
    columns: Columns
    """As a file has them, and `column`, where in its sequence each segment begins."""
    num_sequences: int
    num_repeated_more: int
    """Repeated tokens of these sequences, less those that the files count in their tails."""
    counts: PackingCounts

    def chosen(self, which: Any) -> "Tails":
        """Return some of the segments."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return replace(self, file=self.file[which], columns=columns)

    def of_files(self) -> Iterator[tuple[int, Columns]]:
        """Yield the ordinal of each file that has a segment, and its segments in order."""
        order = np.argsort(self.file, kind="stable")
        ordinals, firsts = np.unique(self.file[order], return_index=True)
        for ordinal, some in zip(ordinals.tolist(), np.split(order, firsts)[1:], strict=True):
            yield ordinal, self.chosen(some).columns

    def index(
        self,
        files: Sequence[PackedFile],
        part: str,
        packing: PackingConfig,
        *,
        first_sequence: int = 0,
    ) -> Iterator[pa.Table]:
        """Yield the index of the segments of each file, given the ordinal of the first sequence
        among all of the part."""
        for ordinal, columns in self.of_files():
            columns["sequence"] = columns["sequence"] + first_sequence
            yield from index_of_segments(part, files[ordinal], columns, packing)

    def tokens(
        self, files: Sequence[PackedFile]
    ) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.uint8] | None]:
        """Return the tokens of the segments, and their loss mask, if they have one."""
        taken, masks = [], []
        for ordinal, columns in self.of_files():
            source = files[ordinal].source
            segments = columns["token_start"], columns["num_tokens"]
            taken.append(source.token_source().take(*segments))
            masked = source.loss_mask_source()
            masks.append(None if masked is None else masked.take(*segments))
        mask = joined_masks(masks, taken)
        return self._in_order(np.concatenate(taken)), None if mask is None else self._in_order(mask)

    def _in_order(self, joined: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the tokens of the segments, given those of each file as `of_files` yields it."""
        order = np.argsort(self.file, kind="stable")
        lengths = self.columns["num_tokens"]
        starts = np.empty_like(lengths)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        return TokenSource((joined,)).take(starts, lengths)


def joined_masks(
    masks: Sequence[npt.NDArray[np.uint8] | None], tokens: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.uint8] | None:
    """Return the loss masks of tokens of several files, end to end: where one has none, each of its
    tokens is a loss token; None where no file has one."""
    if all(mask is None for mask in masks):
        return None
    pairs = zip(masks, tokens, strict=True)
    return np.concatenate(
        [np.ones(len(of), np.uint8) if mask is None else mask for mask, of in pairs]
    )


def make_tails(files: Sequence[PackedFile], part: str, packing: PackingConfig) -> Tails:
    """Return the sequences made of the tails of all files, packed as one more file would be."""
    of_files = [file.tail(part) for file in files]
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
    packed = pack_tails(of_tails, packing)
    segments = packed.segments
    span_start = tails["token_start"] - tails["token_in_piece"]
    return Tails(
        file=np.repeat(np.arange(len(of_files)), num_of_file)[segments.span],
        columns={
            "sequence": segments.sequence,
            "num_tokens": segments.num_tokens,
            "column": columns_of_segments(segments.sequence, segments.num_tokens, packing),
            "token_start": span_start[segments.span] + segments.token_in_span,
            "document": tails["document"][segments.span],
            "char_start": tails["char_start"][segments.span],
            "token_in_piece": segments.token_in_span,
        },
        num_sequences=packed.num_sequences,
        num_repeated_more=int(segments.num_repeated.sum() - of_tails.num_repeated.sum()),
        counts=packed.counts,
    )

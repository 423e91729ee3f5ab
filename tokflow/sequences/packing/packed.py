"""The result of packing: segments of spans, in sequences."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Segments, the tokens that one sequence holds of one span; arrays (num_segments,), int64.

    In the order of the sequences, and in each from left to right.
    """

    sequence: npt.NDArray[np.int64]
    """Ordinal of its sequence."""
    span: npt.NDArray[np.int64]
    """Ordinal of the span it is of."""
    token_in_span: npt.NDArray[np.int64]
    """Tokens of the span before it."""
    num_tokens: npt.NDArray[np.int64]
    num_repeated: npt.NDArray[np.int64]
    """Tokens, from its first, that are in another sequence too: the one it continues."""

    def __len__(self) -> int:
        return len(self.sequence)

    def chosen(self, which: npt.NDArray[Any]) -> "Segments":
        """Return some of the segments, by ordinal or by a truth value for each."""
        return Segments(
            sequence=self.sequence[which],
            span=self.span[which],
            token_in_span=self.token_in_span[which],
            num_tokens=self.num_tokens[which],
            num_repeated=self.num_repeated[which],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingCounts:
    """Counts of what became of documents; a span of a document that the split cut counts as one."""

    num_cut_documents: int = 0
    """Documents cut where a sequence ends: none has all that `overlong` keeps of them. What was
    truncated or dropped is not counted here; only concat may cut what is kept of a truncated
    document, which is then counted in both."""
    num_truncated_documents: int = 0
    """Documents of which `overlong: truncate` keeps one sequence."""
    num_dropped_documents: int = 0
    """Documents of one token or more of which no sequence has any."""
    num_dropped_tokens: int = 0
    """Tokens that are in no sequence, those of truncated and of dropped documents among them."""

    def __add__(self, other: "PackingCounts") -> "PackingCounts":
        names = [field.name for field in dataclasses.fields(self)]
        return PackingCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class PackingResult:
    """The sequences that a packer makes of spans."""

    segments: Segments
    num_sequences: int
    """Sequences that are done: full, or padded on purpose. Segments whose `sequence` is this number
    are the sequence that is left open, the tail: to be packed with the tails of other files."""
    counts: PackingCounts = PackingCounts()

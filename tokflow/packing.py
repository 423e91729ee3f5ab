"""Token spans -> sequences: which tokens stand in which row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError, four_parts

Strategy = Literal["concat", "one_document"]

MAX_SEQUENCE_LENGTH = 2**24
"""Sixteen times the longest context that is trained today; a row must fit into memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingConfig:
    """How tokens become rows of one length."""

    strategy: Strategy = "concat"
    """concat: documents end to end, cut into rows; one_document: each document begins a row."""
    sequence_length: int = 1024
    """Tokens stored per row; a loader makes inputs and labels of it by shifting."""
    tail: Literal["pad", "drop"] = "pad"
    """concat: what happens to the last row of a part, if its tokens do not fill it. It is made
    of the tails of all files, so there is at most one in the whole dataset."""
    pad_id: int | None = None
    """Token id that fills a row; default: the EOS id, or 0 where there is none."""

    def __post_init__(self) -> None:
        if not 1 <= self.sequence_length <= MAX_SEQUENCE_LENGTH:
            raise ConfigError(
                four_parts(
                    where="packing.sequence_length",
                    expected=f"1 to {MAX_SEQUENCE_LENGTH:,}",
                    found=repr(self.sequence_length),
                    remedy="a usual length is 1024 or 2048",
                )
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Where the rows take their tokens from; arrays of shape (num_segments,), int64.

    A segment is a run of tokens of one piece in one row. In the order of the rows, and in a row
    from left to right.
    """

    sequence: npt.NDArray[np.int64]
    """Ordinal of its row."""
    piece: npt.NDArray[np.int64]
    """Ordinal of the piece it is of."""
    token_in_piece: npt.NDArray[np.int64]
    """Tokens of the piece before it."""
    num_tokens: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Packed:
    """What a packer makes of pieces."""

    segments: Segments
    num_sequences: int
    """Rows that are done: full, or padded on purpose. Segments whose `sequence` is this number
    are the tail: fewer tokens than a row, to be packed with the tails of other files."""


def pack_concat(num_tokens: npt.NDArray[np.int64], *, sequence_length: int) -> Packed:
    """Cut the pieces, end to end, into rows; a piece may cross a row's edge.

    No token is dropped: what does not fill a row is the tail.

    For pieces of 3, 2 and 4 tokens (a a a, b b, c c c c) and rows of 4:

        rows            [a a a b]  [b c c c]   tail [c]
        sequence        [0 0 1 1 2]
        piece           [0 1 1 2 2]
        token_in_piece  [0 0 1 0 3]
        num_tokens      [3 1 1 3 1]
    """
    ends = np.cumsum(num_tokens)
    total = int(ends[-1]) if len(ends) else 0
    some = np.flatnonzero(num_tokens)
    edges = np.arange(sequence_length, total, sequence_length)
    cut = np.searchsorted(ends[some], edges)  # which piece each edge is in, or ends
    is_inside = ends[some[cut]] != edges
    edges, cut = edges[is_inside], cut[is_inside]
    stops = np.insert(ends[some], cut, edges)
    piece = np.insert(some, cut, some[cut])
    starts = np.concatenate([np.zeros(1, dtype=np.int64), stops])[:-1]
    segments = Segments(
        sequence=starts // sequence_length,
        piece=piece,
        token_in_piece=starts - (ends - num_tokens)[piece],
        num_tokens=stops - starts,
    )
    return Packed(segments, num_sequences=total // sequence_length)


def pack_one_document(num_tokens: npt.NDArray[np.int64], *, sequence_length: int) -> Packed:
    """Let each piece begin a row of its own; a longer one goes on in the rows after it.

    No token is dropped and there is no tail; the rest of each piece's last row is padding. A
    piece of no tokens has no row.

    For pieces of 5 and 2 tokens and rows of 4: rows [a a a a], [a . . .], [b b . .].
    """
    rows = -(-num_tokens // sequence_length)
    piece = np.repeat(np.arange(len(num_tokens)), rows)
    row_in_piece = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    token_in_piece = row_in_piece * sequence_length
    segments = Segments(
        sequence=np.arange(rows.sum()),
        piece=piece,
        token_in_piece=token_in_piece,
        num_tokens=np.minimum(num_tokens[piece] - token_in_piece, sequence_length),
    )
    return Packed(segments, num_sequences=int(rows.sum()))


PACKERS: dict[Strategy, Callable[..., Packed]] = {
    "concat": pack_concat,
    "one_document": pack_one_document,
}
"""Each takes the tokens of each piece, (num_pieces,) int64, and `sequence_length`. Every token
is in exactly one segment; no row is longer than `sequence_length`; the order of pieces and of
the tokens in them is kept; only the tail is unfinished."""

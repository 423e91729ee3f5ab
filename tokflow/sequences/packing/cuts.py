"""Rows that are cut from documents: out of all, end to end, or out of each."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.sequences.packing.config import PackingConfig
from tokflow.sequences.packing.packed import Packed, Segments


def pack_concat(num_tokens: npt.NDArray[np.int64], config: PackingConfig) -> Packed:
    """Cut the pieces, end to end, into rows; a piece may cross a row's edge.

    What does not fill a row is left open; with an overlap it is left so only if it has a token
    that no other row has.

    For pieces of 3, 2 and 4 tokens (a a a, b b, c c c c) and rows of 4, without and with an
    overlap of 1:

        rows            [a a a b]  [b c c c]  [c . . .]    [a a a b]  [b b c c]  [c c c .]
        sequence        [0 0 1 1 2]                        [0 0 1 1 2]
        piece           [0 1 1 2 2]                        [0 1 1 2 2]
        token_in_piece  [0 0 1 0 3]                        [0 0 0 0 1]
        num_tokens      [3 1 1 3 1]                        [3 1 2 2 3]
        num_repeated    [0 0 0 0 0]                        [0 0 1 0 1]
    """
    some = np.flatnonzero(num_tokens)
    ends = np.cumsum(num_tokens[some])
    total = int(ends[-1]) if len(ends) else 0
    row_start = np.arange(_num_rows(total, config)) * (config.row_length - config.row_overlap)
    row_stop = np.minimum(row_start + config.row_length, total)
    first = np.searchsorted(ends, row_start, side="right")
    last = np.searchsorted(ends, row_stop)
    sequence, ordinal = _counted(last - first + 1)
    piece = first[sequence] + ordinal
    piece_start = (ends - num_tokens[some])[piece]
    start = np.maximum(piece_start, row_start[sequence])
    size = np.minimum(ends[piece], row_stop[sequence]) - start
    again = row_start[sequence] + config.row_overlap - start
    segments = Segments(
        sequence=sequence,
        piece=some[piece],
        token_in_piece=start - piece_start,
        num_tokens=size,
        num_repeated=np.where(sequence > 0, np.clip(again, 0, size), 0),
    )
    is_last_open = len(row_start) > 0 and row_stop[-1] - row_start[-1] < config.row_length
    return Packed(segments, num_sequences=len(row_start) - int(is_last_open))


def pack_one_document(num_tokens: npt.NDArray[np.int64], config: PackingConfig) -> Packed:
    """Let each piece begin a row of its own; a longer one goes on in the rows after it.

    No row is left open; the rest of each piece's last row is padding. A piece of no tokens has
    no row.

    For pieces of 5 and 2 tokens and rows of 4: rows [a a a a], [a . . .], [b b . .]; with an
    overlap of 1: [a a a a], [a a . .], [b b . .].
    """
    piece, row_in_piece = _counted(_num_rows(num_tokens, config))
    token_in_piece = row_in_piece * (config.row_length - config.row_overlap)
    segments = Segments(
        sequence=np.arange(len(piece)),
        piece=piece,
        token_in_piece=token_in_piece,
        num_tokens=np.minimum(num_tokens[piece] - token_in_piece, config.row_length),
        num_repeated=np.where(row_in_piece > 0, config.row_overlap, 0),
    )
    return Packed(segments, num_sequences=len(piece))


def _num_rows(num_tokens: Any, config: PackingConfig) -> Any:
    """Return how many rows it takes to hold so many tokens: of one number, or of each."""
    beyond = np.maximum(num_tokens - config.row_length, 0)
    return (num_tokens > 0) + -(-beyond // (config.row_length - config.row_overlap))


def _counted(
    times: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each ordinal as often as `times` says, and how often it was there before.

    For times of 2, 0 and 1: [0 0 2] and [0 1 0].
    """
    ordinal = np.repeat(np.arange(len(times)), times)
    before = np.cumsum(times) - times
    return ordinal, np.arange(len(ordinal)) - before[ordinal]

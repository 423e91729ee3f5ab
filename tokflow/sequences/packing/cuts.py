"""Sequences that are cut from documents: out of all, end to end, or out of each."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.sequences.packing.config import PackingConfig
from tokflow.sequences.packing.packed import PackingResult, Segments


def pack_concat(num_tokens: npt.NDArray[np.int64], config: PackingConfig) -> PackingResult:
    """Cut the spans, end to end, into sequences; a span may cross a sequence's edge.

    What does not fill a sequence is left open; with an overlap it is left so only if it has a token
    that no other sequence has.

    For spans of 3, 2 and 4 tokens (a a a, b b, c c c c) and sequences of 4, without and with an
    overlap of 1:

        sequences      [a a a b]  [b c c c]  [c . . .]    [a a a b]  [b b c c]  [c c c .]
        sequence       [0 0 1 1 2]                        [0 0 1 1 2]
        span           [0 1 1 2 2]                        [0 1 1 2 2]
        token_in_span  [0 0 1 0 3]                        [0 0 0 0 1]
        num_tokens     [3 1 1 3 1]                        [3 1 2 2 3]
        num_repeated   [0 0 0 0 0]                        [0 0 1 0 1]
    """
    some = np.flatnonzero(num_tokens)
    ends = np.cumsum(num_tokens[some])
    total = int(ends[-1]) if len(ends) else 0
    starts = np.arange(_num_sequences(total, config)) * (
        config.stored_length - config.stored_overlap
    )
    stops = np.minimum(starts + config.stored_length, total)
    first = np.searchsorted(ends, starts, side="right")
    last = np.searchsorted(ends, stops)
    sequence, ordinal = _counted(last - first + 1)
    span = first[sequence] + ordinal
    span_start = (ends - num_tokens[some])[span]
    start = np.maximum(span_start, starts[sequence])
    size = np.minimum(ends[span], stops[sequence]) - start
    again = starts[sequence] + config.stored_overlap - start
    segments = Segments(
        sequence=sequence,
        span=some[span],
        token_in_span=start - span_start,
        num_tokens=size,
        num_repeated=np.where(sequence > 0, np.clip(again, 0, size), 0),
    )
    is_last_open = len(starts) > 0 and stops[-1] - starts[-1] < config.stored_length
    return PackingResult(segments, num_sequences=len(starts) - int(is_last_open))


def pack_one_document(num_tokens: npt.NDArray[np.int64], config: PackingConfig) -> PackingResult:
    """Let each span begin a sequence of its own; a longer one goes on in the sequences after it.

    None is left open; the rest of each span's last sequence is padding. A span of no tokens has
    no sequence.

    For spans of 5 and 2 tokens and sequences of 4: [a a a a], [a . . .], [b b . .]; with an
    overlap of 1: [a a a a], [a a . .], [b b . .].
    """
    span, sequence_in_span = _counted(_num_sequences(num_tokens, config))
    token_in_span = sequence_in_span * (config.stored_length - config.stored_overlap)
    segments = Segments(
        sequence=np.arange(len(span)),
        span=span,
        token_in_span=token_in_span,
        num_tokens=np.minimum(num_tokens[span] - token_in_span, config.stored_length),
        num_repeated=np.where(sequence_in_span > 0, config.stored_overlap, 0),
    )
    return PackingResult(segments, num_sequences=len(span))


def _num_sequences(num_tokens: Any, config: PackingConfig) -> Any:
    """Return how many sequences it takes to hold so many tokens: of one number, or of each."""
    beyond = np.maximum(num_tokens - config.stored_length, 0)
    return (num_tokens > 0) + -(-beyond // (config.stored_length - config.stored_overlap))


def _counted(
    times: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each ordinal as often as `times` says, and how often it was there before.

    For times of 2, 0 and 1: [0 0 2] and [0 1 0].
    """
    ordinal = np.repeat(np.arange(len(times)), times)
    before = np.cumsum(times) - times
    return ordinal, np.arange(len(ordinal)) - before[ordinal]

"""Loss mask of spans: which sequences have a supervised token, and what became of turns.

A turn is a run of neighbouring supervised tokens of one document, such as a reply of a chat.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokflow.sequences.packing import Segments

TOKENS_AT_ONCE = 2**24
"""Tokens whose mask is in memory at one time; a longer segment is read whole."""

NO_MASK = 2
"""In a source, the value of tokens of documents that are no chats: supervised, but of no turn."""


class MaskSource(Protocol):
    """Loss mask of the tokens of one split or of several, end to end."""

    def take(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Any:
        """Return the mask of many runs of tokens, end to end."""


@dataclass(frozen=True, slots=True)
class SpanMask:
    """The loss mask of spans, read where it is asked for."""

    source: MaskSource
    """0, 1 or NO_MASK for each token."""
    span_start: npt.NDArray[np.int64]
    """The position in `source` of each span's first token; (num_spans,)."""

    def num_supervised(self, segments: Segments) -> npt.NDArray[np.int64]:
        """Return how many tokens of each segment are supervised, (num_segments,)."""
        found = np.zeros(len(segments), dtype=np.int64)
        for some, values in self._read(segments):
            edges = np.cumsum(segments.num_tokens[some]) - segments.num_tokens[some]
            found[some] = np.add.reduceat(values > 0, edges, dtype=np.int64)
        return found

    def turn_counts(self, whole: Segments, packed: Segments) -> dict[str, int]:
        """Return what became of the turns of spans, `whole`, that are packed into segments.

        num_cut_turns: turns cut where a sequence ends, once for each cut; num_dropped_turns: turns
        whose first token is in no sequence.
        """
        firsts, lasts = whole.token_in_span, whole.token_in_span + whole.num_tokens
        stops = packed.token_in_span + packed.num_tokens
        is_inside = stops < lasts[packed.span]
        begun = lasts.copy()  # differs from firsts where `overlong` took the beginning away
        np.minimum.at(begun, packed.span, packed.token_in_span)
        truncated = np.flatnonzero((begun > firsts) & (begun < lasts))
        span = np.append(packed.span[is_inside], truncated)
        edge = np.append(stops[is_inside], begun[truncated])
        pairs = self.source.take(self.span_start[span] + edge - 1, np.full(len(edge), 2))
        num_dropped, once, packed_once = 0, _once(whole), _once(packed)
        if once.num_tokens.sum() > packed_once.num_tokens.sum():
            num_dropped = self._num_turns(once) - self._num_turns(packed_once)
        num_cut = int(np.count_nonzero((pairs.reshape(-1, 2) == 1).all(axis=1)))
        return {"num_cut_turns": num_cut, "num_dropped_turns": num_dropped}

    def _num_turns(self, segments: Segments) -> int:
        """Return how many turns begin in segments."""
        has_before = segments.token_in_span > 0
        longer = replace(
            segments,
            token_in_span=segments.token_in_span - has_before,
            num_tokens=segments.num_tokens + has_before,
        )
        num = 0
        for some, values in self._read(longer):
            first = np.cumsum(longer.num_tokens[some]) - longer.num_tokens[some]
            is_turn = values == 1
            begins = is_turn & ~np.append(False, is_turn[:-1])
            begins[first] = is_turn[first] & ~has_before[some]
            num += int(np.count_nonzero(begins))
        return num

    def _read(self, segments: Segments) -> Iterator[tuple[slice, npt.NDArray[np.uint8]]]:
        """Yield some segments, in order, and the mask of their tokens."""
        start, sizes = self.span_start[segments.span] + segments.token_in_span, segments.num_tokens
        ends = np.cumsum(sizes)
        first = 0
        while first < len(sizes):
            most = ends[first] - sizes[first] + TOKENS_AT_ONCE
            some = slice(first, max(first + 1, int(np.searchsorted(ends, most, "right"))))
            yield some, self.source.take(start[some], sizes[some])
            first = some.stop


def _once(segments: Segments) -> Segments:
    """Return segments without tokens that another sequence has before them."""
    left = replace(
        segments,
        token_in_span=segments.token_in_span + segments.num_repeated,
        num_tokens=segments.num_tokens - segments.num_repeated,
        num_repeated=np.zeros_like(segments.num_repeated),
    )
    return left.chosen(left.num_tokens > 0)

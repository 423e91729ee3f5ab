"""Packing: token spans -> sequences.

The sequences of a file depend on that file alone. One that is not full is not padded there:

    concat                      leaves open what is behind the last full sequence
    greedy                      leaves its last sequence open
    first_fit, best_fit, pool   leave their least filled sequence open
    one_document                leaves none open: each document's last sequence is padded

The open sequences of all files, the tails, are packed by the same strategy when an export is made,
as if they were one more file behind all others, and the one that this leaves open is the last of
the part: `tail: pad` fills it, `tail: drop` leaves it out. So a new file changes no sequence of
another file, and at most one of a part is padded (concat) or left out for its tail.

A sequence that continues another, the next cut of a document or with concat the next of the file,
repeats its last `stored_overlap` tokens. A tail goes on in the same way, so that it begins with
tokens that are in a full sequence already; `num_repeated` tells how many. Without overlap and
`label_token` no token is in two sequences.

    written - repeated + dropped = tokens of the split
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokflow.sequences.packing.config import MAX_SEQUENCE_LENGTH, PackingConfig, Strategy
from tokflow.sequences.packing.cuts import pack_concat, pack_one_document
from tokflow.sequences.packing.packed import PackingCounts, PackingResult, Segments
from tokflow.sequences.packing.side_by_side import FITS, pack_side_by_side

PACKERS: dict[Strategy, Callable[[npt.NDArray[np.int64], PackingConfig], PackingResult]] = {
    "concat": pack_concat,
    **dict.fromkeys([*FITS, "pool"], pack_side_by_side),
    "one_document": pack_one_document,
}
"""Each takes the tokens of each span, (num_spans,) int64. Every token is in exactly one segment,
but for those that are repeated; no sequence is longer than `stored_length`; sequences are in the
order of their first span, spans in one in theirs; only the tail is unfinished, and comes last."""


def pack_spans(num_tokens: npt.NDArray[np.int64], config: PackingConfig) -> PackingResult:
    """Return the sequences of one file, given the tokens of each of its spans, and its tail."""
    kept, counts = _limited(num_tokens, config)
    packed = PACKERS[config.strategy](kept, config)
    num_cut = _num_cut(kept, packed.segments)
    counts += PackingCounts(num_cut_documents=num_cut)
    is_short = _fill(packed.segments) < config.min_sample_length
    is_short[packed.num_sequences :] = False
    return _without(replace(packed, counts=counts), is_short)


def pack_tails(tails: Segments, config: PackingConfig) -> PackingResult:
    """Return the sequences made of the tails of all files; none is left open.

    A segment of a tail may become several; `span` is the ordinal of the segment it is of.
    """
    packed = PACKERS[config.strategy](tails.num_tokens, config)
    found = packed.segments
    in_tail = np.clip(tails.num_repeated[found.span] - found.token_in_span, 0, found.num_tokens)
    is_span = tails.token_in_span == 0  # the others were cut before
    num_cut = _num_cut(np.where(is_span, tails.num_tokens, 0), found)
    segments = replace(
        found,
        token_in_span=tails.token_in_span[found.span] + found.token_in_span,
        num_repeated=np.maximum(in_tail, found.num_repeated),
    )
    fill = _fill(segments)
    is_left_out = fill < config.min_sample_length
    is_left_out[packed.num_sequences :] |= config.tail == "drop"
    counts = PackingCounts(num_cut_documents=num_cut)
    return _without(PackingResult(segments, len(fill), counts), is_left_out)


def _limited(
    num_tokens: npt.NDArray[np.int64], config: PackingConfig
) -> tuple[npt.NDArray[np.int64], PackingCounts]:
    """Return how many tokens of each span are packed, and what is left out by `overlong`."""
    is_overlong = num_tokens > config.stored_length
    num_overlong = int(np.count_nonzero(is_overlong))
    if config.overlong == "split" or num_overlong == 0:
        return num_tokens, PackingCounts()
    is_dropped = config.overlong == "drop"
    kept = np.where(is_overlong, 0 if is_dropped else config.stored_length, num_tokens)
    return kept, PackingCounts(
        num_truncated_documents=0 if is_dropped else num_overlong,
        num_dropped_documents=num_overlong if is_dropped else 0,
        num_dropped_tokens=int((num_tokens - kept).sum()),
    )


def _num_cut(num_tokens: npt.NDArray[np.int64], segments: Segments) -> int:
    """Return how many spans with tokens no segment has whole."""
    is_cut = num_tokens > 0
    is_whole = segments.num_tokens == num_tokens[segments.span]
    is_cut[segments.span[is_whole]] = False
    return int(np.count_nonzero(is_cut))


def _fill(segments: Segments) -> npt.NDArray[np.int64]:
    """Return how many tokens each sequence has, the open one among them."""
    return np.bincount(segments.sequence, weights=segments.num_tokens).astype(np.int64)


def _without(packed: PackingResult, is_left_out: npt.NDArray[np.bool_]) -> PackingResult:
    """Leave out sequences, each the last of its documents, and count what is in no other."""
    if not is_left_out.any():
        return packed
    segments = packed.segments
    is_gone = is_left_out[segments.sequence]
    gone = segments.chosen(is_gone)
    is_whole = (gone.token_in_span == 0) & (gone.num_repeated == 0)
    counts = PackingCounts(
        num_dropped_documents=int(np.count_nonzero(is_whole)),
        num_dropped_tokens=int((gone.num_tokens - gone.num_repeated).sum()),
    )
    kept = segments.chosen(~is_gone)
    ordinal = np.cumsum(~is_left_out) - 1
    return PackingResult(
        replace(kept, sequence=ordinal[kept.sequence]),
        num_sequences=packed.num_sequences - int(is_left_out[: packed.num_sequences].sum()),
        counts=packed.counts + counts,
    )


__all__ = [
    "MAX_SEQUENCE_LENGTH",
    "PACKERS",
    "PackingConfig",
    "PackingCounts",
    "PackingResult",
    "Segments",
    "Strategy",
    "pack_spans",
    "pack_tails",
]

"""Use of the vocabulary: how often each id stands in the tokens, and which never does."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokflow.report.picture import INK, SERIES, Picture, make_picture, short_number
from tokflow.report.sample import StoreFacts
from tokflow.report.token_texts import TokenTexts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TOKENS = 256_000_000
"""Tokens that are counted, at most: 2 s, and 0.5 to 1 GB that are read."""

MAX_FAR_TOKENS = 8_000_000
"""The same of a store at a URL."""

FREQUENT, UNUSED = 24, 28
"""Ids that are shown of each."""

UNUSED_LOOKED_AT = 2_000
"""Ids among which those to show are chosen."""

POINTS = 160
"""Of the curve, at most."""


@dataclass(frozen=True, kw_only=True)  # without slots, since it keeps what it looked up
class VocabularyUse:
    """How often each id was counted."""

    counts: npt.NDArray[np.int64] = field(repr=False)
    """(vocab_size,)"""
    read: str
    """What was counted."""
    not_counted: frozenset[int]
    """Ids of special tokens, which are not missed, and ids that no token has."""

    @property
    def frequent(self) -> list[tuple[int, int]]:
        """The most frequent ids and their counts."""
        order = np.argsort(-self.counts, kind="stable")[:FREQUENT]
        return [(int(of), int(self.counts[of])) for of in order if self.counts[of]]

    @cached_property
    def unused(self) -> list[int]:
        """The ids of plain tokens that were not met once."""
        never = np.flatnonzero(self.counts == 0).tolist()
        return [of for of in never if of not in self.not_counted]


def count_ids(facts: StoreFacts, texts: TokenTexts) -> VocabularyUse | None:
    """Count the ids of the tokens of the files that are read; None where there is none."""
    shards = facts.shards
    if not shards.num_tokens:
        return None
    most = MAX_FAR_TOKENS if shards.is_far else MAX_TOKENS
    counts = np.zeros(texts.tokenizer.vocab_size, np.int64)
    for beginning in shards.beginnings(most):
        for start in range(0, len(beginning), 2**24):
            counts += np.bincount(beginning[start : start + 2**24], minlength=len(counts))
    not_counted = texts.special_ids | texts.ids_of_none
    return VocabularyUse(counts=counts, read=shards.read_of(most), not_counted=not_counted)


def vocabulary_picture(use: VocabularyUse) -> Picture:
    """Return the counts of ids from the most frequent to the least, on two logarithmic axes."""
    ordered = np.sort(use.counts[use.counts > 0])[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), POINTS).astype(np.int64))
    num_used = len(ordered)
    num_all = num_used + len(use.unused)

    def draw(axes: "Axes") -> None:
        axes.plot(ranks, ordered[ranks - 1], color=SERIES[3], linewidth=1.8)
        axes.fill_between(ranks, ordered[ranks - 1], color=SERIES[3], alpha=0.15)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(1, max(num_all, 2))
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.minorticks_off()
        axes.set_xlabel("ids, the most frequent first")
        axes.set_ylabel("times")
        axes.grid(axis="y")
        if num_used < num_all:
            axes.axvspan(num_used, num_all, color=SERIES[4], alpha=0.18, linewidth=0)
            words = f"{num_all - num_used:,} never "
            place, at = ("data", "axes fraction"), (num_used, 1)
            axes.annotate(
                words,
                at,
                (-3, -2),
                xycoords=place,
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=8.5,
                color=INK,
            )

    note = f"{num_used:,} of {num_all:,} ids; counted: {use.read}"
    return make_picture("vocabulary_use", "Use of the vocabulary", draw, note=note)

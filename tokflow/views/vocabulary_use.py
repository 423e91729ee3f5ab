"""Use of the vocabulary: how often each id stands in the tokens, and which never does."""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokflow.audit.token_texts import TokenTexts
from tokflow.errors import UntrustedCodeError
from tokflow.pipeline.plan import Plan
from tokflow.views.picture import SERIES, Picture, make_picture, short_number
from tokflow.views.sample import StoreFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKEN_BYTES = 2
"""Of a token in the files that a report samples; of some vocabularies it is twice as much."""

FREQUENT, UNUSED = 24, 28
"""Ids that are shown of each."""

UNUSED_LOOKED_AT = 2_000
"""Ids among which those to show are chosen."""

POINTS = 160
"""Of the curve, at most."""


def open_texts(plan: Plan) -> TokenTexts | None:
    """Return the texts of the tokens of a dataset; None where it has no tokenizer yet, or one that
    is Python code which may not run."""
    if not plan.graph.tokenizer_output.is_made:
        return None
    texts = TokenTexts(plan.graph.tokenizer)
    with suppress(UntrustedCodeError):
        return texts if texts.bytes_by_id or texts.engine else None
    return None


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
    most = facts.plan.dataset.store.sample_bytes // TOKEN_BYTES
    counts = np.zeros(texts.tokenizer.vocab_size, np.int64)
    for beginning in shards.beginnings(most):
        for start in range(0, len(beginning), 2**24):
            counts += np.bincount(beginning[start : start + 2**24], minlength=len(counts))
    of_none = (id_ for id_, content in enumerate(texts.bytes_by_id or ()) if content is None)
    not_counted = texts.special_ids.union(of_none)
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

    note = f"{num_used:,} of {num_all:,} ids; counted: {use.read}"
    return make_picture("vocabulary_use", "Use of the vocabulary", draw, note=note)

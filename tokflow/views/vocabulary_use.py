"""Vocabulary: the texts of single tokens, how often each id stands in the tokens, and which never
does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokflow.errors import UntrustedCodeError
from tokflow.pipeline.plan import Plan
from tokflow.tokenizers.engines import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokenizers.vocabulary import token_bytes
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

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

MAX_PIECES = 4
"""Bytes of a character in UTF-8, and so tokens that one may be made of."""


class TokenTexts:
    """The texts of tokens: their bytes or, of a tokenizer whose tokens are no pieces of the text,
    what each is decoded to alone.

    Raises: UntrustedCodeError where only code decodes that may not run.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = (of for of in (tokenizer.eos_id, tokenizer.bos_id) if of is not None)
        self.special_ids = frozenset((*tokenizer.special_tokens.values(), *added))
        self._bytes = token_bytes(tokenizer)
        self._engine = open_reference(tokenizer) if self._bytes is None else None
        self._known: dict[tuple[int, ...], str] = {}
        tokens = enumerate(self._bytes or ())
        self.ids_of_none = frozenset(id_ for id_, content in tokens if content is None)
        """Ids that no token has."""

    def of(self, *token_ids: int) -> str:
        """Return the text of one token, or of several together, U+FFFD for half a character."""
        if token_ids not in self._known:
            content = self.bytes_of(*token_ids)
            text = None if content is None else content.decode(errors="replace")
            if text is None and self._engine is not None:
                text = self._engine.decode(token_ids)
            self._known[token_ids] = text or ""
        return self._known[token_ids]

    def bytes_of(self, *token_ids: int) -> bytes | None:
        """Return the bytes of tokens; None where tokens are no pieces of the text."""
        known = self._bytes
        return None if known is None else b"".join(known[id_] or b"" for id_ in token_ids)

    def pieces(self, token_ids: Sequence[int]) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield tokens with their text: one by one, but together those that have a character only
        together."""
        start = 0
        while start < len(token_ids):
            stop = start + 1
            while REPLACEMENT in (text := self.of(*token_ids[start:stop])):
                if stop - start == MAX_PIECES or stop == len(token_ids):
                    stop, text = start + 1, self.of(token_ids[start])
                    break
                stop += 1
            yield tuple(token_ids[start:stop]), text
            start = stop


def open_texts(plan: Plan) -> TokenTexts | None:
    """Return the texts of the tokens of a dataset; None where it has no tokenizer yet, or one that
    is Python code which may not run."""
    if not plan.graph.tokenizer_output.is_made:
        return None
    try:
        return TokenTexts(plan.graph.tokenizer)
    except UntrustedCodeError:
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

    note = f"{num_used:,} of {num_all:,} ids; counted: {use.read}"
    return make_picture("vocabulary_use", "Use of the vocabulary", draw, note=note)

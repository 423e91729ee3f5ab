"""Two engines for one batch: the fast one, and the reference for what only it gets right."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tokflow.store.arrow import to_arrow
from tokflow.tokenizers.engines.code_points import CodePoints
from tokflow.tokenizers.engines.protocol import Encoded, Engine


class RoutedEngine:
    """A fast engine that leaves every text with one of some code points to the reference."""

    def __init__(self, fast: Engine, reference: Engine, code_points: CodePoints) -> None:
        self._fast = fast
        self._reference = reference
        self._code_points = code_points

    @property
    def name(self) -> str:
        """The library that makes the tokens of nearly all texts."""
        return self._fast.name

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, in order."""
        of_reference = self._code_points.texts_with(texts)
        if not len(of_reference):
            return self._fast.encode(texts)
        is_routed = np.zeros(len(texts), dtype=np.bool_)
        is_routed[of_reference] = True
        routed = self._reference.encode(texts.take(to_arrow(of_reference)))
        others = self._fast.encode(texts.take(to_arrow(np.flatnonzero(~is_routed))))
        counts = np.empty(len(texts), dtype=np.int64)
        counts[is_routed], counts[~is_routed] = np.diff(routed.offsets), np.diff(others.offsets)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        token_ids = np.empty(offsets[-1], dtype=np.uint32)
        is_token_routed = np.repeat(is_routed, counts)
        token_ids[is_token_routed] = routed.token_ids
        token_ids[~is_token_routed] = others.token_ids
        return Encoded(token_ids=token_ids, offsets=offsets)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return self._fast.decode(token_ids)

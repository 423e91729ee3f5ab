"""Two engines for one batch: the fast one, and the reference for what only it gets right."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokflow.store.arrow import to_arrow
from tokflow.tokenizers.engines.code_points import CodePoints
from tokflow.tokenizers.engines.protocol import Encoded, Engine, encoded_from_lists


@dataclass(frozen=True)
class RoutedEngine:
    """A fast engine that leaves every text with one of some code points to the reference."""

    fast: Engine
    reference: Engine
    code_points: CodePoints

    @property
    def name(self) -> str:
        """The library that makes the tokens of nearly all texts."""
        return self.fast.name

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, in order."""
        of_reference = self.code_points.texts_with(texts)
        if not len(of_reference):
            return self.fast.encode(texts)
        is_routed = np.zeros(len(texts), dtype=np.bool_)
        is_routed[of_reference] = True
        others = np.flatnonzero(~is_routed)
        documents = {
            True: iter(self.reference.encode(texts.take(to_arrow(of_reference))).documents()),
            False: iter(self.fast.encode(texts.take(to_arrow(others))).documents()),
        }
        return encoded_from_lists([next(documents[routed]) for routed in is_routed.tolist()])

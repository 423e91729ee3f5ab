"""The tokens of many splits, read as if they lay end to end."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.split.spans import Split
from tokflow.tokens.token_source import TokenSource


def memory_bytes() -> int:
    """Return the memory of this machine; where that cannot be known, more than any has."""
    if not hasattr(os, "sysconf"):
        return 2**63
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class GatheredTokens:
    """The token sources of splits, or their loss masks, end to end.

    A position counts from the first token of the first split. Each file is open only while it is
    read.
    """

    splits: Sequence[Split]
    of_loss_mask: bool = False
    edges: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The position at which each split begins, and the end of the last."""

    def __post_init__(self) -> None:
        sizes = (split.num_positions for split in self.splits)
        object.__setattr__(self, "edges", tuple(accumulate(sizes, initial=0)))

    def take(
        self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any]:
        """Return the tokens of many spans or segments, end to end; each file is read once,
        forwards."""
        dtype = np.dtype(np.uint8) if self.of_loss_mask else self.splits[0].shard.dtype
        found = np.ones(lengths.sum(), dtype=dtype)  # of a split without a mask every token counts
        is_large = self.edges[-1] * dtype.itemsize > memory_bytes() // 2
        at = np.cumsum(lengths) - lengths
        some = np.flatnonzero(lengths)
        order = some[np.argsort(starts[some])]
        of_splits = np.searchsorted(starts[order], self.edges)
        for number in np.flatnonzero(np.diff(of_splits)).tolist():
            here = order[of_splits[number] : of_splits[number + 1]]
            source = self._source(self.splits[number])
            if source is None:
                continue
            spans = starts[here] - self.edges[number], lengths[here]
            if is_large:
                source.expect(*spans)
            source.fill(found, at[here], *spans)
            source.release()
        return found

    def release(self) -> None:
        """Do nothing: what was read is given back already."""

    def _source(self, split: Split) -> TokenSource | None:
        return split.loss_mask_source() if self.of_loss_mask else split.token_source()

"""Orders of rows: as they lie in their files, or shuffled by a seed, wholly or in blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from tokflow.loaders.samples import Numbers, grouped
from tokflow.split.permutation import PERMUTATION_VERSION, SMALL_SIZE, Permutation

BLOCKS_VERSION = 1
"""Raised when the same seed, epoch, blocks and window would give another order."""

WINDOW = 64
"""Blocks whose rows are mixed, unless it is said."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """The rows in the order of their files."""

    num_rows: int

    @property
    def identity(self) -> Mapping[str, Any]:
        """The values that decide it, as JSON: kind, version, seed, epoch and so on."""
        return {"kind": "in order"}

    def at(self, places: Numbers) -> Numbers:
        """Return the places themselves."""
        return places


@dataclass(frozen=True, slots=True)
class Shuffled:
    """All rows once, in an order that seed and epoch decide; of SMALL_SIZE and more without a
    table."""

    num_rows: int
    seed: int
    epoch: int = 0

    @property
    def identity(self) -> Mapping[str, Any]:
        """The values that decide it, as JSON: kind, version, seed, epoch and so on."""
        decided = {"seed": self.seed, "epoch": self.epoch}
        return {"kind": "shuffled", "version": PERMUTATION_VERSION, **decided}

    def at(self, places: Numbers) -> Numbers:
        """Return the number of the row at each place."""
        return _at(Permutation(self.num_rows, self.seed, f"epoch {self.epoch}"), places)


def _at(permutation: Permutation, places: Numbers) -> Numbers:
    """Return the number at each place, of a small permutation out of a table of all."""
    return _table(permutation)[places] if len(permutation) < SMALL_SIZE else permutation.at(places)


@lru_cache(maxsize=16)
def _table(permutation: Permutation) -> Numbers:
    """Return the numbers at all places, 0.5 MB at most, made in 20 ms. Small permutations have the
    most rounds: to compute 64 places alone takes 160 us."""
    table = permutation.at(np.arange(len(permutation)))
    table.flags.writeable = False
    return table


@dataclass(frozen=True, slots=True)
class ShuffledBlocks:
    """All rows once, read a block at a time: blocks of consecutive rows are shuffled, and then the
    rows of so many blocks, which are a window. No table of it is kept.

    Windows have as many blocks as each other, or one less; never more than `window`. The last
    block, which may be shorter, is anywhere in the order.

    Of 10 rows, blocks of 3 and windows of 2:

        blocks    [6 7 8] [9]      [0 1 2] [3 4 5]
        windows   [8 9 6 7]        [4 0 2 5 3 1]
    """

    num_rows: int
    seed: int
    epoch: int
    rows_of_a_block: int
    window: int = WINDOW
    """Blocks of a window at most: a reader that holds these reads every block once. The fewer, the
    more rows of a batch are of one block."""
    _blocks: Permutation = field(init=False, repr=False, compare=False)
    _short_place: int = field(init=False, repr=False, compare=False)
    """The place of the last block in the order of blocks."""

    def __post_init__(self) -> None:
        num_blocks = max(1, -(-self.num_rows // self.rows_of_a_block))
        blocks = Permutation(num_blocks, self.seed, f"epoch {self.epoch} blocks")
        object.__setattr__(self, "_blocks", blocks)
        object.__setattr__(self, "_short_place", blocks.places_of(num_blocks - 1))

    @property
    def identity(self) -> Mapping[str, Any]:
        """The values that decide it, as JSON: kind, version, seed, epoch and so on."""
        return {
            "kind": "shuffled blocks",
            "version": [PERMUTATION_VERSION, BLOCKS_VERSION],
            "seed": self.seed,
            "epoch": self.epoch,
            "blocks": self.rows_of_a_block,
            "window": self.window,
        }

    def at(self, places: Numbers) -> Numbers:
        """Return the number of the row at each place."""
        mixed, block_places = np.empty_like(places), self._block_places(places)
        least, num_longer = divmod(len(self._blocks), -(-len(self._blocks) // self.window))
        windows = np.maximum(block_places // (least + 1), (block_places - num_longer) // least)
        for window, here in grouped(windows):
            edges = np.array([window, window + 1])
            first_blocks = edges * least + np.minimum(edges, num_longer)
            first, last = self._first_rows(first_blocks)
            name = f"epoch {self.epoch} window {window}"
            permutation = Permutation(int(last - first), self.seed, name)
            mixed[here] = first + _at(permutation, places[here] - first)
        block_places = self._block_places(mixed)
        blocks = self._blocks.at(block_places)
        return blocks * self.rows_of_a_block + mixed - self._first_rows(block_places)

    @property
    def _num_missing(self) -> int:
        """Rows that the last block is short of."""
        return len(self._blocks) * self.rows_of_a_block - self.num_rows

    def _first_rows(self, block_places: Numbers) -> Numbers:
        """Return where the rows of the block at each place begin, blocks end to end."""
        is_behind = block_places > self._short_place
        return block_places * self.rows_of_a_block - np.where(is_behind, self._num_missing, 0)

    def _block_places(self, rows: Numbers) -> Numbers:
        """Return the place of the block that each row is in, blocks end to end."""
        end_of_short = (self._short_place + 1) * self.rows_of_a_block - self._num_missing
        is_behind = rows >= end_of_short
        return (rows + np.where(is_behind, self._num_missing, 0)) // self.rows_of_a_block


Order: TypeAlias = InOrder | Shuffled | ShuffledBlocks
"""An order of the rows of a source: the row at each place, computed alone."""


@lru_cache(maxsize=8)  # the batches of an epoch have one order
def shuffled_order(num_rows: int, seed: int, epoch: int, blocks: int | None, window: int) -> Order:
    """Return all rows in an order that seed and epoch decide: of blocks of so many rows, if any."""
    if blocks is None:
        return Shuffled(num_rows, seed, epoch)
    return ShuffledBlocks(num_rows, seed, epoch, blocks, window)

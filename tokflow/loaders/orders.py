"""Orders of samples: rows as they lie in their files, or shuffled by a seed, wholly or in blocks;
and the rows of several sources, block by block, in the shares of a mixture's stages."""

import hashlib
import heapq
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

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


MIXTURE_VERSION = 1
"""Raised when the same sources, weights and seed would give other samples."""

BLOCK = 1_024
"""Samples whose rows are mixed with each other."""

ONE = 2**64
"""A whole, in the units of ratios and remainders."""


@dataclass(frozen=True, slots=True)
class Branching:
    """The rows of some sources, divided between two groups of these."""

    left: int
    """A source, or further on a branching: those of `MixtureStage.branchings` go on behind the
    sources."""
    right: int
    remainder: int
    """The part of a row that the left group has before the first, in units of 1 / ONE."""


@dataclass(frozen=True, slots=True)
class MixtureStage:
    """The samples of a mixture for which the weights are the same.

    They are dealt out in cycles, whole blocks of which each has two rows at least of the smallest
    source. At the end of a cycle the rows of each source are its share, rounded by the largest
    remainder.
    """

    first: int
    """Its first sample."""
    end: int
    """The first sample behind it; ENDLESS where there is none."""
    taken: tuple[int, ...]
    """Rows of each source that the samples before it have."""
    weights: tuple[int, ...]
    """The share of each source in its rows, as whole numbers: of their sum."""
    branchings: tuple[Branching, ...]
    """Divisions of the rows of a cycle: one less than sources, the last divides all."""

    @property
    def cycle(self) -> int:
        """Samples of a cycle."""
        least = min(weight for weight in self.weights if weight)
        return BLOCK * -(-2 * sum(self.weights) // (least * BLOCK))

    @property
    def num_samples(self) -> int:
        """The number of its samples."""
        return self.end - self.first

    def rows_after(self, num_samples: int) -> list[int]:
        """Return the rows of each source in its first `num_samples` before they are shuffled.

        One sample more is one row more of one source, so that counts never go back, and those of
        any number of samples are computed alone. At the end of a cycle no source is a row off its
        share. Within one it is never three, in a later stage never five: there sources are divided
        into two groups again and again, the smallest deepest, and each division is rounded to the
        nearest row (of a later stage up or down, as the seed has it).
        """
        number, rest = divmod(num_samples, self.cycle)
        before = self._rows_of_cycles(number)
        if not rest:
            return before
        behind = self._rows_of_cycles(number + 1)
        of_cycle = [after - earlier for earlier, after in zip(before, behind, strict=True)]
        return [
            earlier + own for earlier, own in zip(before, self._first(rest, of_cycle), strict=True)
        ]

    def _rows_of_cycles(self, number: int) -> list[int]:
        """Return the rows of each source in the first `number` cycles: the shares, rounded down,
        and one row more for those with the largest remainders."""
        num_samples, whole = number * self.cycle, sum(self.weights)
        exact = [divmod(num_samples * weight, whole) for weight in self.weights]
        rows = [num for num, _ in exact]
        by_remainder = sorted(range(len(exact)), key=lambda source: -exact[source][1])
        for source in by_remainder[: num_samples - sum(rows)]:
            rows[source] += 1
        return rows

    def _first(self, num_samples: int, of_cycle: list[int]) -> list[int]:
        """Return how many rows of each source the first samples of a cycle have, given those of
        all of it."""
        groups = [*of_cycle]
        for branching in self.branchings:
            groups.append(groups[branching.left] + groups[branching.right])
        rows = [0] * len(groups)
        rows[-1] = num_samples
        for number in reversed(range(len(self.branchings))):
            branching, of_both = self.branchings[number], len(of_cycle) + number
            if rows[of_both]:
                ratio = rows[of_both] * groups[branching.left] * ONE // groups[of_both]
                rows[branching.left] = (ratio + branching.remainder) // ONE
            rows[branching.right] = rows[of_both] - rows[branching.left]
        return rows[: len(of_cycle)]

    def taken_after(self, num_samples: int, *, seed: int) -> list[int]:
        """Return the rows of each source in the samples before it and its first `num_samples`."""
        block, places = divmod(num_samples, BLOCK)
        rows = np.add(self.taken, self.rows_after(block * BLOCK))
        if places:
            sources, _ = shuffled_block(self, block, seed)
            rows += np.bincount(sources[:places], minlength=len(rows))
        taken: list[int] = rows.tolist()
        return taken

    def num_within(self, limits: Numbers, *, seed: int) -> int | None:
        """Return how many samples of it there are before one that is a row too many of its source,
        of which the samples before have as many as its limit; None where none is."""

        def is_passed(block: int) -> bool:
            num_samples = min((block + 1) * BLOCK, self.num_samples)
            return bool(np.any(np.add(self.taken, self.rows_after(num_samples)) > limits))

        num_blocks = -(-self.num_samples // BLOCK)  # the last may be shorter
        block = bisect_left(range(num_blocks), True, key=is_passed)
        if block == num_blocks:
            return None
        sources, rows = shuffled_block(self, block, seed)
        return block * BLOCK + int(np.flatnonzero(rows >= limits[sources])[0])


def make_stages(
    shares: Mapping[int, Sequence[Fraction]], *, end: int, seed: int
) -> tuple[MixtureStage, ...]:
    """Return the stages that begin at these samples, each with the shares of all sources, in rows;
    they need not add up to one."""
    stages: list[MixtureStage] = []
    taken = [0] * len(shares[0])
    for (first, its_shares), its_end in zip(shares.items(), [*shares, end][1:], strict=True):
        if stages:
            taken = np.add(taken, stages[-1].rows_after(first - stages[-1].first)).tolist()
        whole = math.lcm(*(share.denominator for share in its_shares))
        weights = tuple(share.numerator * (whole // share.denominator) for share in its_shares)
        # The remainders that branchings begin with: a half, which rounds to the nearest; in later
        # stages drawn, so that in many short ones a small source has its share too.
        remainders = [ONE // 2] * (len(taken) - 1)
        if first:
            name = f"{MIXTURE_VERSION}:{seed}:{first}".encode()
            drawn = hashlib.shake_256(name).digest(8 * len(remainders))
            remainders = np.frombuffer(drawn, dtype="<u8").tolist()
        # The two smallest groups are always one of the next, as in a Huffman code.
        groups = [(weight, number) for number, weight in enumerate(weights)]
        heapq.heapify(groups)
        branchings: list[Branching] = []
        for number, remainder in zip(count(len(weights)), remainders, strict=False):
            (of_left, left), (of_right, right) = heapq.heappop(groups), heapq.heappop(groups)
            branchings.append(Branching(left, right, remainder))
            heapq.heappush(groups, (of_left + of_right, number))
        of_stage = first, its_end, tuple(taken), weights, tuple(branchings)
        stages.append(MixtureStage(*of_stage))
    return tuple(stages)


def shuffled_block(
    stage: MixtureStage, number: int, seed: int
) -> tuple[npt.NDArray[np.int32], Numbers]:
    """Return of each sample of a block the source, and which of its rows it is: row 0 is the first
    that the mixture takes of it, and so on in the order of the samples."""
    first = number * BLOCK
    end = min(first + BLOCK, stage.num_samples)
    before = np.array(stage.rows_after(first), dtype=np.int64)
    nums: Numbers = stage.rows_after(end) - before
    in_turn = np.repeat(np.arange(len(nums), dtype=np.int32), nums)
    mixed = Permutation(end - first, seed, f"mixture {stage.first + first}")
    sources = in_turn[mixed.at(np.arange(end - first))]
    rows = np.empty(end - first, dtype=np.int64)
    earlier = np.repeat(stage.taken + before - np.cumsum(nums) + nums, nums)
    rows[np.argsort(sources, kind="stable")] = earlier + np.arange(end - first)
    return sources, rows

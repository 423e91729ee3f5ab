"""Stages of a mixture: how many rows of each source its first samples take, and in which order."""

import hashlib
import heapq
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

import numpy as np
import numpy.typing as npt

from tokflow.loaders.samples import Numbers
from tokflow.split.permutation import Permutation

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
        branchings = _branchings(weights, remainders)
        stages.append(MixtureStage(first, its_end, tuple(taken), weights, branchings))
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


def _branchings(weights: Sequence[int], remainders: Sequence[int]) -> tuple[Branching, ...]:
    """Return how rows are divided: the two smallest groups are always one of the next, as in a
    Huffman code."""
    groups = [(weight, number) for number, weight in enumerate(weights)]
    heapq.heapify(groups)
    branchings: list[Branching] = []
    for number, remainder in zip(count(len(weights)), remainders, strict=False):
        (of_left, left), (of_right, right) = heapq.heappop(groups), heapq.heappop(groups)
        branchings.append(Branching(left, right, remainder))
        heapq.heappush(groups, (of_left + of_right, number))
    return tuple(branchings)

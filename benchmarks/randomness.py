"""How far an order of rows is from one by chance: statistics, each in standard deviations.

The tests of every order are these, and `python -m benchmarks orders` gives them of others' too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
OrderFunction = Callable[[Numbers], Numbers]
"""Gives the number of the row at each place."""

LIMIT = 5.0
"""Standard deviations that a statistic may be off: about 1 in 2,000,000 is by chance."""

SAMPLED = 2**20
"""Places looked at of an order that has more: the first."""

SOURCES_AND_BATCH = ((3, 32), (8, 64), (37, 512), (64, 512))


@dataclass(frozen=True, slots=True)
class Statistic:
    """One thing that an order is looked at for."""

    kind: str
    """sources, correlation, steps or pairs."""
    name: str
    value: float
    """Of a correlation itself, 0 by chance; of the others chi2 per degree of freedom, which is 1 by
    chance, above it where counts are too uneven and below it where they are too even."""
    z: float
    """Standard deviations that it is off."""


def statistics(
    order: OrderFunction, size: int, *, num_places: int = SAMPLED
) -> Iterator[Statistic]:
    """Yield the statistics of an order of `size` rows, of its first places."""
    places = np.arange(min(size, num_places))
    numbers = order(places)
    yield from _of_batches(numbers, size)
    for lag in _lags(size):
        is_all = len(places) + lag > size
        first = numbers[:-lag] if is_all else numbers
        second = numbers[lag:] if is_all else order(places + lag)
        yield _correlation(first, second, size, f"at {lag}")
        yield _of_steps(first, second, size, f"of {lag}")
        # Of a whole order it is known how many are in each range.
        yield _of_pairs(first, second, size, f"at {lag}", df=15**2 if is_all else 16**2 - 1)


def statistics_of_two(
    one: OrderFunction, other: OrderFunction, size: int, *, num_places: int = SAMPLED
) -> Iterator[Statistic]:
    """Yield how far two orders of `size` rows are from having nothing to do with each other."""
    places = np.arange(min(size, num_places))
    first, second = one(places), other(places)
    df = 15**2 if len(places) == size else 16**2 - 1
    yield _correlation(first, second, size, "of two", mean=0)
    yield _of_steps(first, second, size, "of two")
    yield _of_pairs(first, second, size, "of two", df=df)


def places_looked_at(size: int) -> Numbers:
    """Return the places that `statistics` asks an order of `size` rows for, in ascending order."""
    places = np.arange(min(size, SAMPLED))
    looked_at = np.unique(np.concatenate([places, *(places + lag for lag in _lags(size))]))
    return looked_at[looked_at < size]


def off_the_most(found: Iterator[Statistic]) -> Statistic:
    """Return the statistic that is off by the most standard deviations."""
    return max(found, key=lambda one: abs(one.z))


def of_counts(counts: Numbers, df: int | None = None) -> tuple[float, float]:
    """Return chi2 per degree of freedom of counts that are equal by chance, and how many standard
    deviations it is off: chi2 has `df` degrees of freedom, its mean and half its variance."""
    df = counts.size - 1 if df is None else df
    chi2 = float((np.square(counts - counts.mean()) / counts.mean()).sum())
    return chi2 / df, (chi2 - df) / (2 * df) ** 0.5


def _lags(size: int) -> tuple[int, ...]:
    """Return how far apart the places are that are compared: neighbours, and the row below in the
    rectangle of a network."""
    return (1, 2, 3, 64, -(-size // (isqrt(size - 1) + 1)))


def _of_batches(numbers: Numbers, size: int) -> Iterator[Statistic]:
    """Yield how far the shares of sources in batches are from those of drawing without putting
    back. The sources are of one size, one behind the other."""
    for num_sources, batch in SOURCES_AND_BATCH:
        edges = [-(-number * size // num_sources) for number in range(num_sources + 1)]
        expected = batch * (np.diff(np.array(edges, dtype=np.uint64)) / size)
        source = np.searchsorted(np.array(edges[1:-1], dtype=np.int64), numbers, side="right")
        num = len(source) // batch
        cells = source[: num * batch].reshape(num, batch) + num_sources * np.arange(num)[:, None]
        counts = np.bincount(cells.ravel(), minlength=num * num_sources).reshape(num, num_sources)
        # The variance of a batch is less by its share of all.
        chi2 = (np.square(counts - expected) / expected).sum() * (size - 1) / (size - batch)
        df = num * (num_sources - 1)
        name = f"{num_sources} in batches of {batch}"
        yield Statistic("sources", name, chi2 / df, (chi2 - df) / (2 * df) ** 0.5)


def _correlation(
    first: Numbers, second: Numbers, size: int, name: str, mean: float | None = None
) -> Statistic:
    """Return the correlation, whose mean by chance is -1 / `size` in an order."""
    found = float(np.corrcoef(first / size, second / size)[0, 1])
    mean = -1 / size if mean is None else mean
    return Statistic("correlation", name, found, (found - mean) * len(first) ** 0.5)


def _of_steps(first: Numbers, second: Numbers, size: int, name: str) -> Statistic:
    """Return how far steps, modulo `size`, are from being all as likely; those of 0 left out."""
    steps = (second - first).astype(np.uint64) + np.uint64(size) * (second < first)
    shares = (steps[steps > 0] - 1) / (size - 1)
    counts = np.bincount((shares * 64).astype(np.int64), minlength=64)[:64]
    return Statistic("steps", name, *of_counts(counts))


def _of_pairs(first: Numbers, second: Numbers, size: int, name: str, *, df: int) -> Statistic:
    """Return how far pairs, both of them in one of 16 ranges, are from being all as likely."""
    one, other = ((some / size * 16).astype(np.int64) for some in (first, second))
    counts = np.bincount(one * 16 + other, minlength=256)[:256]
    return Statistic("pairs", name, *of_counts(counts, df))

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from math import isqrt

import numpy as np
import numpy.typing as npt
import pytest

from tokflow.split.permutation import MAX_SIZE, SMALL_ROUNDS, Permutation

Order = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]

LIMIT = 5.0
"""Standard deviations that a statistic may be off: about 1 in 2,000,000 is by chance, and some 150
are looked at."""

SAMPLED = 2**20
"""Places looked at of an order that has more."""

SIZES = (1_000, 2**16, 2**20, 1_000_003, 50_000_000, 10**9, MAX_SIZE)

GOLDEN = {
    (10, 0, ""): [5, 1, 8, 7, 4, 0, 6, 2],
    (10, 1337, "sequences:train"): [4, 3, 1, 7, 2, 0, 8, 5],
    (1_000, 1337, "sequences:train"): [934, 703, 718, 245, 596, 330, 506, 179],
    (2**20, 1337, "sequences:train"): [
        445661,
        404459,
        911496,
        107648,
        470860,
        999275,
        499042,
        997660,
    ],
    (1_000_003, 1337, "epoch 3"): [294279, 113444, 697, 656847, 511184, 965758, 832996, 586827],
    (10**9, -1, "epoch 3"): [
        791318281,
        10463761,
        3398092,
        716016099,
        175058118,
        239991688,
        324389734,
        642784091,
    ],
    (MAX_SIZE, 2**64, "documents:a.jsonl"): [
        2356745218526103289,
        8535112267630247268,
        5363548680849064471,
        6878061782279577680,
        1823596179110985583,
        866692923675551038,
        3870341465608514858,
        5568511209001417427,
    ],
}
"""The first numbers of some orders: of version 1, for ever."""


@pytest.mark.parametrize("key", GOLDEN, ids=str)
def test_an_order_is_the_same_for_ever(key: tuple[int, int, str]):
    permutation = Permutation(*key)

    assert permutation.at(np.arange(8)).tolist() == GOLDEN[key]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 255, 256, 1_000, 65_537])
def test_every_number_has_one_place(size: int):
    permutation = Permutation(size, 7, "")

    numbers = permutation.at(np.arange(size))

    assert sorted(numbers.tolist()) == list(range(size))
    assert permutation.places_of(numbers).tolist() == list(range(size))


@pytest.mark.parametrize("size", [2**20, 10**9, 10**18, MAX_SIZE - 1, MAX_SIZE])
def test_an_index_is_computed_alone_and_back(size: int):
    permutation = Permutation(size, 7, "")
    places = np.array([0, 1, size // 3, size - 2, size - 1])

    numbers = permutation.at(places)

    assert [permutation.at(place) for place in places.tolist()] == numbers.tolist()
    assert permutation.places_of(numbers).tolist() == places.tolist()
    assert permutation.places_of(int(numbers[2])) == size // 3


def test_another_seed_purpose_or_size_is_another_order():
    keys = [(1_000, 0, "a"), (1_000, 1, "a"), (1_000, 0, "b"), (1_001, 0, "a")]

    orders = [Permutation(*key).at(np.arange(1_000)) for key in keys]

    for one, other in itertools.combinations(orders, 2):
        assert np.count_nonzero(one == other) < 10  # 1 by chance


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_that_is_not_there_is_refused(index: int):
    with pytest.raises(IndexError, match="from 0 to 9"):
        Permutation(10, 0, "").at(index)


def test_a_size_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"2\*\*63"):
        Permutation(MAX_SIZE + 1, 0, "")


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_few_is_as_likely(size: int):
    assert abs(_likelihood_of_orders(size, num_rounds=SMALL_ROUNDS)) < LIMIT


def test_six_rounds_are_too_few_for_a_few():
    assert _likelihood_of_orders(5, num_rounds=6) > 3 * LIMIT


def test_of_ten_every_number_and_every_pair_of_neighbours_is_as_likely():
    size, num_seeds = 10, 2_000

    orders = np.array(
        [Permutation(size, seed, "").at(np.arange(size)) for seed in range(num_seeds)]
    )

    places = np.array([np.bincount(column, minlength=size) for column in orders.T])
    pairs = np.bincount((orders[:, :-1] * size + orders[:, 1:]).ravel(), minlength=size**2)
    of_different = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
    assert abs(_z(places, df=(size - 1) ** 2)) < LIMIT
    assert abs(_z(of_different)) < LIMIT


@pytest.mark.parametrize("size", SIZES)
def test_an_order_is_as_random_as_it_says(size: int):
    statistics = dict(_statistics(Permutation(size, 1337, "").at, size))

    assert {name: z for name, z in statistics.items() if abs(z) > LIMIT} == {}


@pytest.mark.parametrize("size", [1_000, 2**20])
def test_the_statistics_pass_numpys_permutation(size: int):
    table = np.random.default_rng(0).permutation(size)

    assert max(abs(z) for _, z in _statistics(table.__getitem__, size)) < LIMIT


@pytest.mark.parametrize("size", [1_000, 2**20, 1_000_003, 10**9])
def test_the_statistics_see_that_two_rounds_are_too_few(size: int):
    permutation = _of_rounds(Permutation(size, 1337, ""), 2)

    assert max(abs(z) for _, z in _statistics(permutation.at, size)) > 5 * LIMIT


def _of_rounds(permutation: Permutation, num_rounds: int) -> Permutation:
    """Return the permutation with its first rounds alone."""
    object.__setattr__(permutation, "_keys", permutation._keys[:num_rounds])
    return permutation


def _likelihood_of_orders(size: int, *, num_rounds: int) -> float:
    """Return how far the orders of a few numbers are from each being as likely, over many seeds."""
    orders, numbers = list(itertools.permutations(range(size))), np.arange(size)
    permutations = (Permutation(size, seed, "") for seed in range(20 * len(orders)))
    found = Counter(tuple(_of_rounds(p, num_rounds).at(numbers).tolist()) for p in permutations)
    return _z(np.array([found[order] for order in orders]))


def _z(counts: npt.NDArray[np.int64], df: int | None = None) -> float:
    """Return how many standard deviations counts are off being equal: chi2 has `df` degrees of
    freedom, which are its mean by chance and half its variance."""
    df = counts.size - 1 if df is None else df
    chi2 = float((np.square(counts - counts.mean()) / counts.mean()).sum())
    return (chi2 - df) / (2 * df) ** 0.5


def _statistics(order: Order, size: int) -> Iterator[tuple[str, float]]:
    """Yield how many standard deviations each statistic of an order is off."""
    width = -(-size // (isqrt(size - 1) + 1))
    places = np.arange(min(size, SAMPLED))
    numbers = order(places)
    yield from _of_batches(numbers, size)
    for lag in (1, 2, 3, 64, width):  # of the network's rectangle, the row below, too
        is_all = len(places) + lag > size
        first = numbers[:-lag] if is_all else numbers
        second = numbers[lag:] if is_all else order(places + lag)
        yield f"correlation at {lag}", _correlation(first, second, size)
        yield f"steps of {lag}", _of_steps(first, second, size)
        yield f"pairs at {lag}", _of_pairs(first, second, size, is_all=is_all)


def _of_batches(numbers: npt.NDArray[np.int64], size: int) -> Iterator[tuple[str, float]]:
    """Yield how far the shares of sources in batches are from those of drawing without putting
    back: above 0 they are too uneven, below it too even."""
    for num_sources, batch in ((3, 32), (8, 64), (37, 512)):
        edges = [-(-number * size // num_sources) for number in range(num_sources + 1)]
        expected = batch * (np.diff(np.array(edges, dtype=np.uint64)) / size)
        source = np.searchsorted(np.array(edges[1:-1], dtype=np.int64), numbers, side="right")
        num = len(source) // batch
        cells = source[: num * batch].reshape(num, batch) + num_sources * np.arange(num)[:, None]
        counts = np.bincount(cells.ravel(), minlength=num * num_sources).reshape(num, num_sources)
        # The variance of a batch is less by its share of all.
        chi2 = (np.square(counts - expected) / expected).sum() * (size - 1) / (size - batch)
        df = num * (num_sources - 1)
        yield f"{num_sources} sources in batches of {batch}", (chi2 - df) / (2 * df) ** 0.5


def _correlation(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], size: int) -> float:
    """Return the correlation, less its mean by chance, times the root of the number of pairs."""
    found = float(np.corrcoef(first / size, second / size)[0, 1])
    return (found + 1 / size) * len(first) ** 0.5


def _of_steps(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], size: int) -> float:
    """Return how far steps, modulo size, are from being all as likely; none is 0."""
    steps = (second - first).astype(np.uint64) + np.where(second < first, size, 0).astype(np.uint64)
    return _z(np.bincount(((steps - 1) / (size - 1) * 64).astype(np.int64), minlength=64)[:64])


def _of_pairs(
    first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], size: int, *, is_all: bool
) -> float:
    """Return how far pairs, both of them in one of 16 ranges, are from being all as likely."""
    one, other = ((some / size * 16).astype(np.int64) for some in (first, second))
    df = 15**2 if is_all else None  # of a whole order it is known how many are in each range
    return _z(np.bincount(one * 16 + other, minlength=256)[:256], df)

import itertools
from collections import Counter

import numpy as np
import pytest

from benchmarks.randomness import LIMIT, of_counts, off_the_most, statistics
from tokflow.split.permutation import MAX_SIZE, SMALL_ROUNDS, Permutation

SIZES = (
    1_000,
    *(pytest.param(size, marks=pytest.mark.slow) for size in (2**16, 1_000_003)),
    MAX_SIZE,
)

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


@pytest.mark.parametrize("size", [3, 5])
def test_every_order_of_a_few_is_as_likely(size: int):
    assert abs(_likelihood_of_orders(size, num_rounds=SMALL_ROUNDS)) < LIMIT


def test_six_rounds_are_too_few_for_a_few():
    assert _likelihood_of_orders(5, num_rounds=6) > LIMIT


def test_of_ten_every_number_and_every_pair_of_neighbours_is_as_likely():
    size, num_seeds = 10, 250

    orders = np.array(
        [Permutation(size, seed, "").at(np.arange(size)) for seed in range(num_seeds)]
    )

    places = np.array([np.bincount(column, minlength=size) for column in orders.T])
    pairs = np.bincount((orders[:, :-1] * size + orders[:, 1:]).ravel(), minlength=size**2)
    of_different = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
    assert abs(of_counts(places, df=(size - 1) ** 2)[1]) < LIMIT
    assert abs(of_counts(of_different)[1]) < LIMIT


@pytest.mark.parametrize("size", SIZES)
def test_an_order_is_as_random_as_it_says(size: int):
    found = statistics(Permutation(size, 1337, "").at, size)

    assert [one for one in found if abs(one.z) > LIMIT] == []


@pytest.mark.parametrize("size", [1_000])
def test_the_statistics_see_that_two_rounds_are_too_few(size: int):
    permutation = _of_rounds(Permutation(size, 1337, ""), 2)

    assert abs(off_the_most(statistics(permutation.at, size)).z) > 5 * LIMIT


def _of_rounds(permutation: Permutation, num_rounds: int) -> Permutation:
    """Return the permutation with its first rounds alone."""
    object.__setattr__(permutation, "_keys", permutation._keys[:num_rounds])
    return permutation


def _likelihood_of_orders(size: int, *, num_rounds: int) -> float:
    """Return how far the orders of a few numbers are from each being as likely, over many seeds."""
    orders, numbers = list(itertools.permutations(range(size))), np.arange(size)
    permutations = (Permutation(size, seed, "") for seed in range(8 * len(orders)))
    found = Counter(tuple(_of_rounds(p, num_rounds).at(numbers).tolist()) for p in permutations)
    return of_counts(np.array([found[order] for order in orders]))[1]

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.randomness import LIMIT, of_counts, off_the_most, statistics
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.plan import make_plan
from tokflow.split.permutation import MAX_SIZE, SMALL_ROUNDS, Permutation, document_keys
from tokflow.tokens.shard import Origins
from tokflow_tests.tiny import build, declare, write_raw

SIZES = (
    1_000,
    *(pytest.param(size, marks=pytest.mark.slow) for size in (2**16, 1_000_003)),
    MAX_SIZE,
)

GOLDEN = {
    (10, 0, ""): [5, 1, 8, 7, 4, 0, 6, 2],
    (10, 1337, "sequences:train"): [4, 3, 1, 7, 2, 0, 8, 5],
    (1_000, 1337, "sequences:train"): [934, 703, 718, 245, 596, 330, 506, 179],
    (2**20, 1337, "sequences:train"): [445661, 404459, 911496, 107648, 470860, 999275],
    (1_000_003, 1337, "epoch 3"): [294279, 113444, 697, 656847, 511184, 965758, 832996, 586827],
    (10**9, -1, "epoch 3"): [791318281, 10463761, 3398092, 716016099, 175058118, 239991688],
    (MAX_SIZE, 2**64, "documents:a.jsonl"): [2356745218526103289, 8535112267630247268],
}
"""The first numbers of some orders: of version 1, for ever."""


@pytest.mark.parametrize("key", GOLDEN, ids=str)
def test_an_order_is_the_same_for_ever(key: tuple[int, int, str]):
    assert Permutation(*key).at(np.arange(len(GOLDEN[key]))).tolist() == GOLDEN[key]


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


def test_an_index_that_is_not_there_and_a_size_that_cannot_be_are_refused():
    for index in (-1, 10):
        with pytest.raises(IndexError, match="from 0 to 9"):
            Permutation(10, 0, "").at(index)
    with pytest.raises(ValueError, match=r"2\*\*63"):
        Permutation(MAX_SIZE + 1, 0, "")


def test_every_order_of_a_few_is_as_likely_and_by_six_rounds_is_not():
    assert all(abs(_likelihood_of_orders(of, num_rounds=SMALL_ROUNDS)) < LIMIT for of in (3, 5))
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


def test_the_statistics_see_that_two_rounds_are_too_few():
    permutation = _of_rounds(Permutation(1_000, 1337, ""), 2)

    assert abs(off_the_most(statistics(permutation.at, 1_000)).z) > 5 * LIMIT


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


SHUFFLE = {"seed": 5, "documents": "file"}

FILES = {f"{name}.jsonl": [f"{name}{letter}!" for letter in "abcdefgh"] for name in "xyz"}


def declared(folder: Path, **shuffle: Any) -> Dataset:
    return declare(folder, FILES, exports=["bin"], shuffle={**SHUFFLE, **shuffle})


def test_a_document_that_comes_or_goes_moves_no_other(tmp_path: Path):
    keys = document_keys(Origins(["x", "y"], [0, 8]), np.arange(20), 5)

    assert keys[:8].tolist() == document_keys(Origins(["x"], [0]), np.arange(8), 5).tolist()
    assert keys[8:].tolist() == document_keys(Origins(["y"], [0]), np.arange(12), 5).tolist()
    assert (
        keys[[1, 5, 9]].tolist()
        == document_keys(Origins(["x", "y"], [0, 8]), np.array([1, 5, 9]), 5).tolist()
    )


def test_the_order_of_a_file_is_the_same_for_ever():
    keys = document_keys(Origins(["a.jsonl"], [0]), np.arange(8), 1337)

    assert np.argsort(keys).tolist() == [5, 4, 3, 0, 7, 1, 6, 2]


def test_the_order_of_keys_has_no_trend():
    keys = document_keys(Origins(["a.jsonl"], [0]), np.arange(10**5), 1337)

    ranks = np.argsort(np.argsort(keys))
    neighbours = np.corrcoef(ranks[:-1], ranks[1:])[0, 1]
    trend = np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]
    assert abs(neighbours) < 5 / len(ranks) ** 0.5
    assert abs(trend) < 5 / len(ranks) ** 0.5


def test_a_new_file_makes_no_other_split_again_and_another_seed_no_token(tmp_path: Path):
    build(dataset := declared(tmp_path))
    write_raw(tmp_path, {"a.jsonl": ["new"]})

    new = [made.output.name for made in build(dataset).made if made.is_new]
    plan = make_plan(declared(tmp_path, seed=6))

    assert new == ["a.jsonl", "a.jsonl", "bin"]
    assert [(item.stage, item.reason) for item in plan.missing if item.name == "x.jsonl"] == [
        ("split", "config changed (shuffle.seed: 5 to 6)")
    ]

"""Rows, and the samples made of them: epochs and random windows."""

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from benchmarks.randomness import LIMIT, statistics
from tokflow.errors import ConfigError
from tokflow.loaders import samples
from tokflow.loaders.loader import Loader
from tokflow.loaders.mixed_samples import mix
from tokflow.loaders.orders import BLOCKS_VERSION
from tokflow.loaders.rows import in_order
from tokflow.loaders.samples import ENDLESS
from tokflow.split.permutation import PERMUTATION_VERSION
from tokflow_tests.loaders.row_sources import CountingRows, CountingStream

SHAPE = (64, 512)


def address_of(values: np.ndarray) -> int:
    return int(values.__array_interface__["data"][0])


def test_memory_is_used_again_when_the_last_view_of_it_is_gone():
    first = samples.empty(SHAPE, np.int64)
    address, view = address_of(first), first[3:]

    del first
    while_held = samples.empty(SHAPE, np.int64)
    assert address_of(while_held) != address
    del view

    assert address_of(samples.empty((512, 64), np.uint64)) == address


def test_memory_of_sizes_that_are_no_longer_asked_for_is_given_back():
    for size in range(samples.SMALL_BYTES, samples.SMALL_BYTES + 100):
        samples.empty((size,), np.uint8)

    assert len(samples._idle) <= samples.MAX_SIZES


def lengths_of(segment_ids: list[list[int]]) -> tuple[list[int], int]:
    ids = np.array(segment_ids or np.zeros((0, 3)), dtype=np.int32)
    found = samples.with_cu_seqlens({"segment_ids": ids})
    assert found["cu_seqlens"].dtype == np.int32
    return found["cu_seqlens"].tolist(), found["max_seqlen"]


@pytest.mark.parametrize(
    ("segment_ids", "lengths"),
    [
        ([[1, 1, 2], [1, 0, 0]], ([0, 2, 3, 4, 6], 2)),
        ([[1, 1, 1], [1, 1, 1]], ([0, 3, 6], 3)),
        ([[0, 0, 0, 1]], ([0, 3, 4], 3)),
        ([], ([0], 0)),
    ],
    ids=["padding behind", "a segment ends with its row", "padding before", "no rows"],
)
def test_segments_of_a_batch_are_counted_end_to_end(
    segment_ids: list[list[int]], lengths: tuple[list[int], int]
):
    assert lengths_of(segment_ids) == lengths


def test_without_segment_ids_nothing_tells_where_segments_begin():
    with pytest.raises(ConfigError) as error:
        samples.with_cu_seqlens({"input_ids": np.zeros((1, 2))})

    assert error.value.where == "cu_seqlens"


def test_a_row_is_one_dimension_less_than_a_list_of_it():
    rows = in_order(CountingRows(3, sequence_length=2))

    assert rows[1]["input_ids"].tolist() == [2, 3]
    assert rows[-1]["index"] == 2
    assert rows[[2, 0]]["labels"].tolist() == [[5, 6], [1, 2]]
    assert rows[1:]["index"].tolist() == [1, 2]
    assert [row["input_ids"].tolist() for row in rows.__getitems__([0, 2])] == [[0, 1], [4, 5]]


@pytest.mark.parametrize("number", [2, np.int32(2), np.array(2), -1])
def test_a_number_of_any_library_is_a_row(number: Any):
    assert in_order(CountingRows(3))[number]["input_ids"].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("chosen", [[[0, 1], [1, 2]], 1.0, "1", [1.0], np.array([[1]])])
def test_rows_are_picked_by_numbers_and_flat_lists_of_them_alone(chosen: Any):
    with pytest.raises(IndexError, match="expected a number, a slice or a list of numbers, found"):
        in_order(CountingRows(3))[chosen]


ROWS = in_order(CountingRows(10))


def test_without_a_seed_each_epoch_is_in_the_order_of_the_rows():
    assert ROWS.epochs().gather(np.arange(8, 13))["index"].tolist() == [8, 9, 0, 1, 2]

    shuffled = ROWS.shuffled(seed=1)
    twice = shuffled.epochs().gather(np.arange(20))["index"].tolist()
    assert twice == 2 * shuffled[:]["index"].tolist()


def test_with_a_seed_each_epoch_has_every_row_once_in_an_order_of_its_own():
    epochs = ROWS.epochs(seed=1)

    orders = [epochs.at(np.arange(10) + 10 * epoch).tolist() for epoch in range(3)]

    assert orders == [ROWS.shuffled(1, epoch)[:]["index"].tolist() for epoch in range(3)]
    assert [sorted(order) for order in orders] == [list(range(10))] * 3
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_samples_across_the_edge_of_an_epoch_and_far_behind_it_are_found_alone():
    epochs = ROWS.epochs(seed=1)
    numbers = np.array([10**18 + 3, 9, 10, 29, 9])

    found = epochs.gather(numbers)["index"].tolist()

    assert found == [int(epochs.at(np.array([number]))[0]) for number in numbers]
    assert found[0] == ROWS.shuffled(1, epoch=10**17)[3]["index"]


def test_epochs_have_no_end_unless_their_number_is_given():
    assert len(ROWS.epochs(seed=1)) == ENDLESS

    two = ROWS.epochs(seed=1, num_epochs=2)
    assert len(two) == 20
    assert two.at(np.array([19])).tolist() == ROWS.epochs(seed=1).at(np.array([19])).tolist()
    for outside in (-1, 20):
        with pytest.raises(IndexError, match="from 0 to 19"):
            two.gather(np.array([outside]))


def test_an_identity_is_of_what_decides_the_rows_alone():
    one = ROWS.epochs(seed=1).identity

    assert one == ROWS.epochs(seed=1, num_epochs=2).identity
    always_the_same = ROWS.shuffled(1).epochs()
    others = [
        ROWS.epochs(),
        always_the_same,
        ROWS.epochs(seed=2),
        in_order(CountingRows(11)).epochs(seed=1),
        ROWS.epochs(seed=1, blocks=4),
        ROWS.epochs(seed=1, blocks=5),
        ROWS.epochs(seed=1, blocks=4, window=2),
    ]
    identities = [one, *(other.identity for other in others)]
    assert all(first != second for first, second in combinations(identities, 2))
    assert others[-1].identity["order"]["version"] == [PERMUTATION_VERSION, BLOCKS_VERSION]
    decided = {"fingerprint": "counting:10:4:0", "output": "counting0", "sequence_length": 4}
    assert one["sources"] == [{"name": "counting", **decided}]


def test_no_rows_no_epochs_and_blocks_without_a_seed_are_refused():
    with pytest.raises(ConfigError, match=r"counting.*at least one row"):
        in_order(CountingRows(0)).epochs()
    with pytest.raises(ConfigError, match=r"num_epochs.*at least 1.*0"):
        ROWS.epochs(num_epochs=0)
    with pytest.raises(ConfigError, match=r"blocks.*a seed"):
        ROWS.epochs(blocks=4)


@pytest.mark.parametrize("options", [{"seed": 1}, {"blocks": 4}, {"seed": 2, "blocks": 4}])
def test_rows_that_are_shuffled_are_not_shuffled_again(options: dict[str, int]):
    for rows in (ROWS.shuffled(seed=1), ROWS.shuffled(seed=1, blocks=2)):
        with pytest.raises(ConfigError, match=r"rows that are shuffled.*give the seed once"):
            rows.epochs(**options)
        with pytest.raises(ConfigError, match=r"rows that are shuffled.*give the seed once"):
            Loader(rows, batch_size=4, **options)


def test_a_window_is_a_stretch_of_the_stream_and_its_index_the_position():
    windows = in_order(CountingStream(2)).random_windows(seed=1)  # 4 inputs of 9 tokens

    found = windows.gather(np.arange(1_000))

    assert len(windows) == ENDLESS
    assert sorted(set(found["index"].tolist())) == [0, 1, 2, 3, 4]
    assert found["input_ids"].tolist() == [
        [place, place + 1, place + 2, place + 3] for place in found["index"].tolist()
    ]


def test_a_stream_too_short_for_a_window_is_refused():
    with pytest.raises(ConfigError, match="more than 4 tokens"):
        in_order(CountingStream(0)).random_windows(seed=1)


@pytest.mark.parametrize(
    ("num_rows", "seed", "golden"),
    [
        (10, 0, [20, 26, 11, 9, 17, 2, 32, 25]),
        (10**9, 1, [161082048, 2716392620, 1332423516, 2312767290]),
    ],
)
def test_windows_are_the_same_for_ever(num_rows: int, seed: int, golden: list[int]):
    windows = in_order(CountingStream(num_rows)).random_windows(seed)

    assert windows.at(np.arange(len(golden))).tolist() == golden


def test_every_position_is_as_likely_whatever_came_before():
    num_rows = 2**28
    windows = in_order(CountingStream(num_rows)).random_windows(seed=1)

    found = statistics(windows.at, 4 * num_rows - 3, num_places=2**18)

    assert [one for one in found if abs(one.z) > LIMIT] == []


STREAM = in_order(CountingStream(100))

SEEDED: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda seed: STREAM.shuffled(seed).epochs(),
    "shuffled blocks": lambda seed: STREAM.shuffled(seed, blocks=4).epochs(),
    "epochs": lambda seed: STREAM.epochs(seed),
    "random windows": lambda seed: STREAM.random_windows(seed),
    "mixture": lambda seed: mix({"a": STREAM}, weights={"a": 1}, seed=seed),
    "loader": lambda seed: Loader(STREAM, batch_size=4, seed=seed).samples,
}


@pytest.mark.parametrize("kind", SEEDED)
def test_a_seed_of_numpy_is_that_of_python(kind: str):
    numbers = np.arange(50)

    samples = SEEDED[kind](np.int64(5))

    assert json.dumps(samples.identity) == json.dumps(SEEDED[kind](5).identity)
    assert samples.identity != SEEDED[kind](6).identity
    assert (
        samples.gather(numbers)["index"].tolist()
        == SEEDED[kind](5).gather(numbers)["index"].tolist()
    )

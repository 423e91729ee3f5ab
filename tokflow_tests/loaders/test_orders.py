import numpy as np
import pytest

from benchmarks.randomness import LIMIT, off_the_most, statistics, statistics_of_two
from tokflow.errors import ConfigError
from tokflow.loaders.orders import InOrder, Order, Shuffled, ShuffledBlocks
from tokflow.loaders.rows import in_order
from tokflow_tests.loaders.row_sources import CountingRows

BLOCKS = [
    (num_rows, blocks, window)
    for num_rows in (0, 1, 7, 64, 301)
    for blocks in (1, 3, 64, 500)
    for window in (1, 2, 64)
]

SAMPLED = 2**18

GOLDEN: dict[Order, list[int]] = {
    Shuffled(1000, 1, 2): [561, 1, 422, 12, 425, 860, 521, 773],  # a permutation of its own
    ShuffledBlocks(10, 0, 0, 3, 2): [5, 3, 2, 1, 0, 4, 8, 6],
    ShuffledBlocks(1000, 1, 2, 10, 64): [386, 309, 700, 980, 332, 300, 815, 510],
    ShuffledBlocks(1000003, 1, 2, 64, 1024): [961863, 495394, 539628, 673140],
    ShuffledBlocks(1000000000, -1, 3, 4096, 64): [537233620, 15852267, 265803373, 81278073],
}
"""The first rows of some orders: of version 1, for ever."""


@pytest.mark.parametrize("order", GOLDEN, ids=str)
def test_an_order_is_the_same_for_ever(order: Order):
    assert order.at(np.arange(len(GOLDEN[order]))).tolist() == GOLDEN[order]


@pytest.mark.parametrize("other", [(1, 1), (2, 0), (-1, 0), (1, 10**9)])
def test_two_seeds_or_epochs_have_nothing_to_do_with_each_other(other: tuple[int, int]):
    size = 50_000_000
    orders = Shuffled(size, 1, 0).at, Shuffled(size, *other).at

    assert abs(off_the_most(statistics_of_two(*orders, size, num_places=SAMPLED)).z) < LIMIT


@pytest.mark.parametrize(
    ("num_rows", "blocks", "window"), [(1_000_003, 64, 16_384), (100_003, 1, 4_096)]
)
def test_blocks_of_one_window_or_of_one_row_are_as_random_as_no_blocks(
    num_rows: int, blocks: int, window: int
):
    order = ShuffledBlocks(num_rows, 1, 3, blocks, window)

    found = statistics(order.at, order.num_rows, num_places=SAMPLED)

    assert abs(off_the_most(found).z) < LIMIT


def test_the_statistics_see_orders_that_are_not_random():
    size, places = 1_000_003, np.arange(SAMPLED)
    buffer = np.concatenate(
        [first + np.random.default_rng(first).permutation(8_192) for first in places[::8_192]]
    )
    broken = {
        "in order": InOrder(size).at,
        "a stride": lambda places: places * 618_034 % size,
        "a buffer": lambda places: buffer[places % len(buffer)],
    }

    found = {
        name: off_the_most(statistics(order, size, num_places=SAMPLED))
        for name, order in broken.items()
    }

    assert {name for name, one in found.items() if abs(one.z) < 10 * LIMIT} == set()


def test_every_row_is_once_in_an_order_of_blocks():
    for num_rows, blocks, window in BLOCKS:
        found = ShuffledBlocks(num_rows, 1, 0, blocks, window).at(np.arange(num_rows))

        assert sorted(found.tolist()) == list(range(num_rows)), (num_rows, blocks, window)


def test_a_place_is_found_alone_in_an_order_of_blocks():
    for num_rows, blocks, window in BLOCKS[12::5]:
        order = ShuffledBlocks(num_rows, 1, 0, blocks, window)
        places = np.random.default_rng(0).permutation(num_rows)[:5]

        whole = order.at(np.arange(num_rows))

        assert [int(order.at(places[n : n + 1])[0]) for n in range(len(places))] == [
            int(whole[place]) for place in places
        ]


def test_a_reader_of_blocks_holds_a_window_and_reads_each_once():
    order = ShuffledBlocks(10_005, 1, 0, 10, window=64)  # 1,001 blocks, the last of 5 rows

    blocks = (order.at(np.arange(order.num_rows)) // 10).tolist()

    lasts = {block: place for place, block in enumerate(blocks)}
    held: set[int] = set()
    reads, most = 0, 0
    for place, block in enumerate(blocks):
        reads += block not in held
        held.add(block)
        most = max(most, len(held))
        held = {one for one in held if lasts[one] > place}
    assert reads == 1_001
    assert 60 < most <= 64


def test_the_last_block_is_anywhere_and_mixed_as_the_others():
    """Of 101 blocks of 10 rows, the last of 4, and windows of at most 50 blocks."""
    firsts, neighbours = [], []
    for epoch in range(100):
        order = ShuffledBlocks(1_004, 1, epoch, 10, window=50)
        numbers = order.at(np.arange(1_004))
        [of_last] = np.nonzero(numbers >= 1_000)
        firsts.append(of_last[0])
        neighbours.append(np.count_nonzero(np.diff(of_last) == 1))

    assert min(firsts) < 100
    assert max(firsts) > 900
    assert np.mean(neighbours) < 0.1  # 3 where they lie together


def test_rows_are_shuffled_in_blocks_where_it_is_said():
    rows = in_order(CountingRows(100))

    found = rows.shuffled(1, 2, blocks=5, window=3)

    assert found.order == ShuffledBlocks(100, 1, 2, 5, 3)
    assert rows.shuffled(1, 2).order == Shuffled(100, 1, 2)
    epochs = rows.epochs(1, blocks=5, window=3).gather(np.arange(200, 300))
    assert epochs["index"].tolist() == found[:]["index"].tolist()


@pytest.mark.parametrize(("key", "wrong"), [("blocks", (0, 1)), ("window", (1, 0))])
def test_blocks_and_windows_of_nothing_are_refused(key: str, wrong: tuple[int, int]):
    with pytest.raises(ConfigError, match=rf"{key}.*at least 1.*0"):
        in_order(CountingRows(10)).shuffled(1, blocks=wrong[0], window=wrong[1])

import itertools

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.loaders.orders import Shuffled, ShuffledBlocks
from tokflow.loaders.rows import in_order
from tokflow_tests.loaders.row_sources import CountingRows

BLOCKS = [
    (num_rows, blocks, window)
    for num_rows in (0, 1, 2, 7, 64, 100, 1_001)
    for blocks in (1, 3, 10, 64, 2_000)
    for window in (1, 2, 7, 64)
]


@pytest.mark.parametrize("epoch", [0, 1])
def test_every_row_is_once_in_an_order_of_blocks(epoch: int):
    for num_rows, blocks, window in BLOCKS:
        found = ShuffledBlocks(num_rows, 1, epoch, blocks, window).at(np.arange(num_rows))

        assert sorted(found.tolist()) == list(range(num_rows)), (num_rows, blocks, window)


def test_a_place_is_found_alone_in_an_order_of_blocks():
    for num_rows, blocks, window in BLOCKS[1:]:
        order = ShuffledBlocks(num_rows, 1, 0, blocks, window)
        places = np.random.default_rng(0).permutation(num_rows)[:5]

        whole = order.at(np.arange(num_rows))

        assert [int(order.at(places[n : n + 1])[0]) for n in range(len(places))] == [
            int(whole[place]) for place in places
        ]


def test_a_reader_of_blocks_holds_a_window_and_reads_each_once():
    order = ShuffledBlocks(10_005, 1, 0, 10, window=64)  # 1,001 blocks, the last of 5 rows

    blocks = (order.at(np.arange(len(order))) // 10).tolist()

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
    for epoch in range(200):
        order = ShuffledBlocks(1_004, 1, epoch, 10, window=50)
        numbers = order.at(np.arange(1_004))
        [of_last] = np.nonzero(numbers >= 1_000)
        firsts.append(of_last[0])
        neighbours.append(np.count_nonzero(np.diff(of_last) == 1))

    assert min(firsts) < 100
    assert max(firsts) > 900
    assert np.mean(neighbours) < 0.1  # 3 where they lie together


def test_another_seed_or_epoch_is_another_order_of_blocks_and_in_them():
    orders = [ShuffledBlocks(1_000, *key, 10, 10) for key in ((1, 0), (1, 1), (2, 0))]

    numbers = [order.at(np.arange(1_000)) for order in orders]

    for one, other in itertools.combinations(numbers, 2):
        assert np.count_nonzero(one == other) < 10  # 1 by chance
        in_block = [some[some // 10 == 7] for some in (one, other)]
        assert in_block[0].tolist() != in_block[1].tolist()


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

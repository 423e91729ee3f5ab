from itertools import combinations

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.loaders.loader import Loader
from tokflow.loaders.orders import BLOCKS_VERSION
from tokflow.loaders.rows import in_order
from tokflow.loaders.samples import ENDLESS
from tokflow.split.permutation import PERMUTATION_VERSION
from tokflow_tests.loaders.row_sources import CountingRows

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

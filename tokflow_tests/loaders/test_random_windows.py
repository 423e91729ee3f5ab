import numpy as np
import pytest

from benchmarks.randomness import LIMIT, statistics
from tokflow.errors import ConfigError
from tokflow.loaders.rows import in_order
from tokflow.loaders.samples import ENDLESS
from tokflow_tests.loaders.row_sources import CountingStream


def test_a_window_is_a_stretch_of_the_stream_and_its_index_the_position():
    windows = in_order(CountingStream(2)).random_windows(seed=1)  # 4 inputs of 9 tokens

    found = windows.gather(np.arange(1_000))

    assert len(windows) == ENDLESS
    assert sorted(set(found["index"].tolist())) == [0, 1, 2, 3, 4]
    assert found["input_ids"].tolist() == [
        [place, place + 1, place + 2, place + 3] for place in found["index"].tolist()
    ]


def test_a_window_is_found_alone_and_by_its_seed():
    windows = in_order(CountingStream(10**9)).random_windows(seed=1)
    numbers = np.array([10**9, 0, 2**62])

    found = windows.at(numbers).tolist()

    assert found == [int(windows.at(np.array([number]))[0]) for number in numbers]
    other = in_order(CountingStream(10**9)).random_windows(seed=2)
    assert other.at(numbers).tolist() != found
    assert other.identity != windows.identity


def test_a_stream_too_short_for_a_window_is_refused():
    with pytest.raises(ConfigError, match="more than 4 tokens"):
        in_order(CountingStream(0)).random_windows(seed=1)


@pytest.mark.parametrize(
    ("num_rows", "seed", "golden"),
    [
        (10, 0, [20, 26, 11, 9, 17, 2, 32, 25]),
        (
            10**9,
            1,
            [
                161082048,
                2716392620,
                1332423516,
                2312767290,
                364528739,
                3894582064,
                2091593271,
                625478288,
            ],
        ),
    ],
)
def test_windows_are_the_same_for_ever(num_rows: int, seed: int, golden: list[int]):
    windows = in_order(CountingStream(num_rows)).random_windows(seed)

    assert windows.at(np.arange(8)).tolist() == golden


def test_every_position_is_as_likely_whatever_came_before():
    num_rows = 2**28
    windows = in_order(CountingStream(num_rows)).random_windows(seed=1)

    found = statistics(windows.at, 4 * num_rows - 3, num_places=2**18)

    assert [one for one in found if abs(one.z) > LIMIT] == []

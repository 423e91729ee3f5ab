import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.loaders.rows import in_order
from tokflow.loaders.samples import ENDLESS
from tokflow_tests.loaders.row_sources import CountingRows, CountingStream


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


def test_a_stream_too_short_for_a_window_and_packed_rows_are_refused():
    with pytest.raises(ConfigError, match="more than 4 tokens"):
        in_order(CountingStream(0)).random_windows(seed=1)
    with pytest.raises(ConfigError, match=r"a stream of tokens.*packed rows.*epochs"):
        in_order(CountingRows(10)).random_windows(seed=1)

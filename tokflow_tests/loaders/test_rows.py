from typing import Any

import numpy as np
import pytest

from tokflow.loaders.rows import in_order
from tokflow_tests.loaders.row_sources import CountingRows


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

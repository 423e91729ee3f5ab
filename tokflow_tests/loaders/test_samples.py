import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.loaders import samples

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

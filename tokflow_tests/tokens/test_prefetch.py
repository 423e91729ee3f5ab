import io
import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from tokflow.tokens.prefetch import in_order, read_ahead
from tokflow_tests.waiting import wait_until


def threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [of for of in names if of.startswith(("tokflow-read-ahead", "tokflow-in-order"))]


@pytest.mark.parametrize("items", [list(range(100)), [], [None, 0, None]])
def test_items_come_in_their_order(items: list[int | None]):
    assert list(read_ahead(items)) == items


def two_then_fail() -> Iterator[int]:
    yield 1
    yield 2
    raise ValueError("third")


def test_what_the_iterable_raises_is_raised_after_what_came_before_it():
    items = read_ahead(two_then_fail())

    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(items)
    assert threads() == []


def test_no_more_than_depth_items_wait_and_one_is_made():
    made = []
    numbers = itertools.count()
    items = read_ahead((made.append(number) or number for number in numbers), depth=2)

    next(items)
    wait_until(lambda: len(made) >= 4)
    time.sleep(0.05)
    num_made = len(made)
    items.close()

    assert num_made == 1 + 2 + 1


def test_closing_early_stops_the_thread_and_closes_the_iterable():
    is_closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            is_closed.set()

    items = read_ahead(endless())
    next(items)
    items.close()

    assert is_closed.is_set()
    assert threads() == []


@pytest.mark.parametrize("num_items", [1, 2, 20])
def test_after_an_error_no_more_than_waits_is_written(num_items: int):
    tried = []

    def write(item: int) -> None:
        tried.append(item)
        raise OSError(f"disk full at {item}")

    with pytest.raises(OSError, match="disk full at 0"):
        list(in_order(write, range(num_items), workers=1, depth=2))

    assert tried == [0, 1, 2][: len(tried)]
    assert threads() == []


def test_what_is_made_ahead_of_time_comes_in_order_and_not_too_far_ahead():
    taken = io.StringIO()

    def items():
        for item in range(20):
            print(item, file=taken)
            yield item

    made = in_order(lambda item: item * item, items(), workers=2)
    first = next(made)

    assert (first, taken.getvalue().split()) == (0, ["0", "1", "2"])
    assert list(made) == [item * item for item in range(1, 20)]


def test_behind_a_large_item_none_is_made_before_the_next_is_asked_for():
    made: list[int] = []
    items = read_ahead((made.append(n) or n for n in range(9)), is_large=lambda n: n == 3)

    for item in items:
        if item == 3:
            time.sleep(0.05)
            assert made == [0, 1, 2, 3]

    assert made == list(range(9))


@pytest.mark.parametrize(("large", "taken_first"), [(None, [0, 1, 2]), (1, [0, 1])])
def test_a_large_item_is_written_before_the_next_is_asked_for(
    large: int | None, taken_first: list[int]
):
    taken: list[int] = []
    items = (taken.append(item) or item for item in range(4))
    written = in_order(str, items, workers=1, depth=2, is_large=lambda item: item == large)

    assert (next(written), taken) == ("0", taken_first)
    assert list(written) == ["1", "2", "3"]


def test_reading_ahead_may_end_at_a_large_item():
    items = read_ahead(range(9), is_large=lambda item: True)

    assert next(items) == 0
    time.sleep(0.05)  # until the thread waits for the next to be asked for
    items.close()
    assert threads() == []

import io
import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from tokflow.tokens.prefetch import in_order, read_ahead, write_behind
from tokflow_tests.waiting import wait_until


def threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [of for of in names if of.startswith(("tokflow-read-ahead", "tokflow-write-behind"))]


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


def test_all_is_written_in_order_when_the_block_ends():
    written = []

    with write_behind(written.append) as submit:
        for number in range(50):
            submit(number)

    assert written == list(range(50))
    assert threads() == []


def test_writing_does_not_wait_for_the_writer_until_depth_items_wait():
    may_write = threading.Event()
    submitted = []

    def write_slowly(item: int) -> None:
        may_write.wait(5)

    def submit_three() -> None:
        with write_behind(write_slowly, depth=2) as submit:
            for number in range(3):
                submit(number)
                submitted.append(number)

    thread = threading.Thread(target=submit_three)
    thread.start()
    wait_until(lambda: len(submitted) >= 2)
    time.sleep(0.05)
    before = list(submitted)
    may_write.set()
    thread.join()

    assert before == [0, 1]
    assert submitted == [0, 1, 2]


@pytest.mark.parametrize("num_items", [1, 2, 20])
def test_after_an_error_no_more_than_waits_is_written(num_items: int):
    tried = []

    def write(item: int) -> None:
        tried.append(item)
        time.sleep(0.01)
        raise OSError(f"disk full at {item}")

    def write_all() -> None:
        with write_behind(write) as submit:
            for number in range(num_items):
                submit(number)

    with pytest.raises(OSError, match="disk full at 0"):
        write_all()

    assert tried == [0, 1, 2][: len(tried)]
    assert threads() == []


def test_an_exception_of_the_block_is_raised_and_stops_the_writer():
    def write_and_fail() -> None:
        with write_behind(time.sleep) as submit:
            submit(0.01)
            raise KeyError("producer")

    with pytest.raises(KeyError, match="producer"):
        write_and_fail()

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


def test_reading_ahead_may_end_at_a_large_item():
    items = read_ahead(range(9), is_large=lambda n: True)

    assert next(items) == 0
    items.close()


def test_a_large_item_is_written_when_it_was_submitted():
    written: list[int] = []

    def write_slowly(item: int) -> None:
        time.sleep(0.02)
        written.append(item)

    with write_behind(write_slowly, depth=9, is_large=lambda n: n == 2) as submit:
        for item in range(3):
            submit(item)

        assert written == [0, 1, 2]

import io
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tokflow import tokens
from tokflow.pools.machine import in_order, read_ahead
from tokflow.tokens import TokenSource
from tokflow_tests.outputs import int64
from tokflow_tests.waiting import wait_until


def threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [of for of in names if of.startswith(("tokflow-read-ahead", "tokflow-in-order"))]


@pytest.mark.parametrize("items", [list(range(100)), [], [None, 0, None]])
def test_items_come_in_their_order_and_then_what_the_iterable_raises(items: list[int | None]):
    def then_fail() -> Iterator[int | None]:
        yield from items
        raise ValueError("then")

    assert list(read_ahead(items)) == items
    read = read_ahead(then_fail())
    assert [next(read) for _ in items] == items
    with pytest.raises(ValueError, match="then"):
        next(read)
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


class Watched(np.ndarray):
    """A file that counts how often it is looked at."""

    looks = 0

    def __len__(self) -> int:
        Watched.looks += 1
        return super().__len__()

    def __getitem__(self, key: Any) -> Any:
        Watched.looks += 1
        return np.asarray(self)[key]


@pytest.fixture
def hundred() -> TokenSource:
    """Files of 10 tokens each: 0 to 9, 10 to 19, ..."""
    whole: npt.NDArray[Any] = np.arange(1000)
    return TokenSource(tuple(file.view(Watched) for file in np.split(whole, 100)))


def test_a_span_looks_only_at_the_files_that_have_it(hundred: TokenSource):
    Watched.looks = 0

    assert len(hundred) == 1000
    assert hundred.read(507, 512).tolist() == [507, 508, 509, 510, 511]
    assert hundred.take(int64(13, 990), int64(2, 10)).tolist() == [13, 14, *range(990, 1000)]
    assert Watched.looks == 2 + 2


def test_tokens_of_one_file_are_not_copied():
    files = tuple(np.arange(10) for _ in range(3))
    source = TokenSource((*files, np.arange(0)))

    assert np.shares_memory(source.read(20, 99), files[2])
    assert np.shares_memory(source.take(int64(11, 13), int64(2, 7)), files[1])


@pytest.mark.parametrize("runs_at_once", [3, 2**12])
def test_many_short_runs_in_any_order_are_read_as_few(
    runs_at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokens, "RUNS_AT_ONCE", runs_at_once)
    choose = np.random.default_rng(0)
    whole = np.arange(1000)
    source = TokenSource(tuple(np.split(whole, [0, 10, 11, 11, 400, 1000])))  # three of no tokens
    starts, lengths = choose.integers(0, 990, 200), choose.integers(0, 11, 200)

    taken = source.take(starts, lengths)

    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    assert taken.tolist() == [
        token for start, size in pairs for token in range(start, start + size)
    ]

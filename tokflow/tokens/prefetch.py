"""Reading ahead and writing behind: items made or written by threads, in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_END: Any = object()


def read_ahead(
    items: Iterable[T], *, depth: int = 2, is_large: Callable[[T], bool] = lambda item: False
) -> Iterator[T]:
    """Yield `items` in order while a thread makes the next ones.

    `depth` of them wait at most, and one more is being made; behind a large one none is made before
    the item after it is asked for. What the iterable raises is raised
    here, after everything before it was yielded. Closing this iterator early stops the thread
    and closes the iterable.
    """
    iterator = iter(items)
    may_go_on = Event()
    may_go_on.set()

    def make() -> T:
        may_go_on.wait()
        item = next(iterator, _END)
        if item is not _END and is_large(item):
            may_go_on.clear()
        return item

    with ThreadPoolExecutor(1, thread_name_prefix="tokflow-read-ahead") as pool:
        waiting = deque(pool.submit(make) for _ in range(depth + 1))
        try:
            while (item := waiting.popleft().result()) is not _END:
                waiting.append(pool.submit(make))
                was_large = is_large(item)
                yield item
                del item
                if was_large:
                    may_go_on.set()
        finally:
            may_go_on.set()
            pool.shutdown(cancel_futures=True)
            getattr(iterator, "close", lambda: None)()


@contextmanager
def write_behind(
    write: Callable[[T], None],
    *,
    depth: int = 2,
    is_large: Callable[[T], bool] = lambda item: False,
) -> Iterator[Callable[[T], None]]:
    """Yield a function that hands an item to `write` in another thread, in order.

    At most `depth` items wait; a large one is waited for. What `write` raises is raised by a later
    call or at the end of the block; of what comes after an error no more than waits then is
    written. All is written when the block ends.
    """
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="tokflow-write-behind") as pool:

        def submit(item: T) -> None:
            if len(waiting) >= depth:
                waiting.popleft().result()
            waiting.append(pool.submit(write, item))
            while waiting and is_large(item):
                waiting.popleft().result()

        try:
            yield submit
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        while waiting:
            waiting.popleft().result()


def in_order(function: Callable[[T], U], items: Iterable[T], *, workers: int = 2) -> Iterator[U]:
    """Yield `function(item)` of each item, in order, computed ahead of time by some threads."""
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

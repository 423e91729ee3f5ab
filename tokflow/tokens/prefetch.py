"""Reading ahead and writing behind: items made or written by threads, in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_END: Any = object()


def read_ahead(items: Iterable[T], *, depth: int = 2) -> Iterator[T]:
    """Yield `items` in order while a thread makes the next ones.

    `depth` of them wait at most, and one more is being made. What the iterable raises is raised
    here, after everything before it was yielded. Closing this iterator early stops the thread
    and closes the iterable.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="tokflow-read-ahead") as pool:
        waiting = deque(pool.submit(next, iterator, _END) for _ in range(depth + 1))
        try:
            while (item := waiting.popleft().result()) is not _END:
                waiting.append(pool.submit(next, iterator, _END))
                yield item
        finally:
            pool.shutdown(cancel_futures=True)
            getattr(iterator, "close", lambda: None)()


@contextmanager
def write_behind(write: Callable[[T], None], *, depth: int = 2) -> Iterator[Callable[[T], None]]:
    """Yield a function that hands an item to `write` in another thread, in order.

    At most `depth` items wait. What `write` raises is raised by a later call or at the end of
    the block; of what comes after an error no more than waits then is written. All is written when
    the block ends.
    """
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="tokflow-write-behind") as pool:

        def submit(item: T) -> None:
            if len(waiting) >= depth:
                waiting.popleft().result()
            waiting.append(pool.submit(write, item))

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

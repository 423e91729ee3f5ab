"""Reading ahead and writing behind: items made or used by threads, in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_END: Any = object()


def read_ahead(
    items: Iterable[T], *, depth: int = 2, is_large: Callable[[T], bool] = lambda item: False
) -> Generator[T]:
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


def in_order(
    function: Callable[[T], U],
    items: Iterable[T],
    *,
    workers: int = 2,
    depth: int | None = None,
    is_large: Callable[[T], bool] = lambda item: False,
) -> Iterator[U]:
    """Yield `function(item)` of each item, in order, computed by some threads while the next items
    are asked for.

    `depth` of them wait at most (default: as many as there are threads), and behind a large one
    none is asked for before it is computed. What `function` raises is raised in its place; of what
    comes after an error, or after the iterator is closed, no more than waits then is computed.
    """
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="tokflow-in-order") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                most = 0 if is_large(item) else depth or workers
                del item
                while len(waiting) > most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

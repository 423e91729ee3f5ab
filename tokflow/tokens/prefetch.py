"""Do the next thing while this one is still worked on: read, make or write, in order."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
StageResult = TypeVar("StageResult")

_END = object()


def read_ahead(items: Iterable[T], *, depth: int = 2) -> Iterator[T]:
    """Yield `items` in order while a thread makes the next ones.

    `depth` of them wait at most, and one more is being made. What the iterable raises is raised
    here, after everything before it was yielded. Closing this iterator early stops the thread
    and closes the iterable.
    """
    ready: queue.Queue[object] = queue.Queue(maxsize=depth)
    is_closed = threading.Event()
    failures: list[BaseException] = []

    def put(item: object) -> bool:
        while not is_closed.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            iterator = iter(items)
            try:
                for item in iterator:
                    if not put(item):
                        break
            finally:
                if hasattr(iterator, "close"):
                    iterator.close()
        except BaseException as error:
            failures.append(error)
        finally:
            put(_END)

    thread = threading.Thread(target=work, name="tokflow-read-ahead", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            yield item  # type: ignore[misc]  # everything but _END came from `items`
        if failures:
            raise failures[0]
    finally:
        is_closed.set()
        thread.join()


@contextmanager
def write_behind(write: Callable[[T], None], *, depth: int = 2) -> Iterator[Callable[[T], None]]:
    """Yield a function that hands an item to `write` in another thread, in order.

    At most `depth` items wait. What `write` raises is raised by a later call or at the end of
    the block; after an error nothing more is written. All is written when the block ends.
    """
    pending: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
    has_failed = threading.Event()

    def work(item: T) -> None:
        if has_failed.is_set():
            return
        try:
            write(item)
        except BaseException:
            has_failed.set()
            raise

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokflow-write-behind") as pool:

        def submit(item: T) -> None:
            if pending.qsize() >= depth:
                pending.get().result()
            pending.put(pool.submit(work, item))

        try:
            yield submit
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        while not pending.empty():
            pending.get().result()


def in_order(
    function: Callable[[T], StageResult], items: Iterable[T], *, workers: int = 2
) -> Iterator[StageResult]:
    """Yield what `function` makes of each item, in order, made by some threads ahead of time."""
    waiting: deque[Future[StageResult]] = deque()
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

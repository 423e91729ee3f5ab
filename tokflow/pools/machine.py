"""Cores and memory that a process may use, threads beside it, and objects that its forks renew."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from math import ceil
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

CGROUP = Path("/sys/fs/cgroup")
"""The folder in which Linux has a container's limits."""

QUOTA_FILES = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""The microseconds of all cores that a container may use, and of the clock in which it may: of
version 2, where both are in one file, and of version 1."""

_of_worker: int | None = None


def num_cores() -> int:
    """Return how many cores this process may use, 1 or more; a worker of a pool has one."""
    if _of_worker is not None:
        return _of_worker
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # Linux; there a container or `taskset` may allow fewer
        cores = len(os.sched_getaffinity(0))
    for names in QUOTA_FILES:
        with suppress(OSError, ValueError):  # not there, or `max`
            text = " ".join((CGROUP / name).read_text() for name in names)
            quota, period = map(int, text.split())
            if quota > 0 and period > 0:  # -1 is no limit
                return min(cores, ceil(quota / period))
    return cores


def be_worker() -> None:
    """Let this process count one core as its own, whatever the machine has; so do libraries in
    Rust, which read the environment before their first parallel work."""
    global _of_worker
    _of_worker = 1
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")


T = TypeVar("T")
U = TypeVar("U")

_renewals: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def renew_in_forks(each: T, renew: Callable[[T], object]) -> None:
    """Let every process that is forked while `each` lives call `renew(each)` before all else.

    A lock of `each` may be held there by a thread that the process has not, and the place in an
    open file is that of all processes together: `renew` uses none of them, but takes new ones.
    """
    _watch_forks()
    _renewals[each] = renew


@cache
def _watch_forks() -> None:
    """Have all renewed in forked processes; asked for once, since that cannot be taken back."""
    os.register_at_fork(
        after_in_child=lambda: [renew(each) for each, renew in list(_renewals.items())]
    )


PROC = Path("/proc")

LIMIT_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""The bytes that a container may use, of version 2 and of version 1."""

SECONDS_BETWEEN = 0.25
"""Seconds between two looks, each of which takes a millisecond for each process."""

LOOKING_SHARE = 0.01
"""Share of a core that looking takes at most: with hundreds of processes it looks less often."""


class PeakMemory:
    """The most memory that this process and its descendants take together while a block runs.

    A page that several of them share counts once, and one of a mapped file as long as it is mapped
    in. It is looked at every quarter of a second, of hundreds of processes every few seconds, so
    that a shorter peak may be missed.
    """

    num_bytes: int | None = None
    """Bytes at the peak so far; None where the system does not say (all but Linux)."""

    def __enter__(self) -> Self:
        self._is_over = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        if sys.platform == "linux":
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        is_over, pause = False, 0.0
        while not is_over:  # the last look is after the end
            is_over = self._is_over.wait(pause)
            began = time.thread_time()
            found = [os.getpid()]
            for each in found:
                with suppress(OSError):  # it ended meanwhile
                    for task in (PROC / f"{each}/task").iterdir():
                        found += map(int, (task / "children").read_text().split())
            now = sum(map(shared_bytes, found))
            self.num_bytes = max(now, self.num_bytes or 0)
            pause = max(SECONDS_BETWEEN, (time.thread_time() - began) / LOOKING_SHARE)


def shared_bytes(pid: int) -> int:
    """Return the proportional share of a process: a page of n processes counts as 1/n."""
    with suppress(OSError):  # it ended meanwhile
        lines = (PROC / f"{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0


def free_bytes() -> int:
    """Return the memory that is free or holds files that can go, no more than a container's limit;
    where that cannot be known, more than any machine has."""
    found = [2**63]
    with suppress(OSError, ValueError):
        fields = dict(line.split(":") for line in (PROC / "meminfo").read_text().splitlines())
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    for name in LIMIT_FILES:
        with suppress(OSError, ValueError):  # not there, or `max`
            found.append(int((CGROUP / name).read_text()))
    return min(found)


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

"""Cores and memory that a process may use, and objects that its forks renew."""

import os
import sys
import time
from collections.abc import Callable
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

"""Cores that a process may use, and objects that its forks renew."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, TypeVar
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
    return min(cores, _quota() or cores)


def _quota() -> int | None:
    """Return how many cores a container's share of the machine's time is worth; None for all."""
    for names in QUOTA_FILES:
        with suppress(OSError, ValueError):  # not there, or `max`
            text = " ".join((CGROUP / name).read_text() for name in names)
            quota, period = map(int, text.split())
            if quota > 0 and period > 0:  # -1 is no limit
                return ceil(quota / period)
    return None


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

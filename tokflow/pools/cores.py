"""Cores that this process may use."""

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container of its limits."""

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

"""Cores that this process may use."""

import os

_of_worker: int | None = None


def num_cores() -> int:
    """Return how many cores this process may use, 1 or more; a worker of a pool has one."""
    if _of_worker is not None:
        return _of_worker
    if hasattr(os, "sched_getaffinity"):  # Linux; there a container or `taskset` may allow fewer
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def be_worker() -> None:
    """Let this process count one core as its own, whatever the machine has."""
    global _of_worker
    _of_worker = 1

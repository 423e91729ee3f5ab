"""Pools that work runs in: this process, processes of this machine, or a Ray cluster.

They run tasks: all that a worker needs to do something alone. It leaves what it makes in
the store, so that a result is no more than that it is there.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import TypedDict

from tokflow.errors import ConfigError
from tokflow.pools.machine import num_cores
from tokflow.pools.pool import InProcess, Pool

SMALL_BYTES = 250_000_000
"""Raw files that hold no more text together are done in this process: to start others, and to load
an engine in each, takes as long as gigatoken does for them."""


class Workers(TypedDict, total=False):
    """Arguments of `open_pool` as a build takes them: what it makes does not depend on them."""

    jobs: int | None
    pool: str | None


def num_jobs(jobs: int | None = None) -> int:
    """Return how many processes are to work; by default `TOKFLOW_JOBS`, else one for each core.

    Raises: ConfigError where `jobs`, or the environment variable, is no such number.
    """
    where, asked = "jobs", str(jobs)
    if jobs is None:
        where, asked = "TOKFLOW_JOBS", os.environ.get("TOKFLOW_JOBS", str(num_cores()))
    if not (asked.isdecimal() and int(asked) > 0):
        raise ConfigError(
            where=where,
            expected="how many processes work at once, 1 or more",
            found=repr(asked),
            remedy="correct it, or leave it out for one for each core",
        )
    return int(asked)


@cache
def get_ready(num_workers: int) -> None:
    """Start the process that the workers of a pool will be forked from, if there will be some."""
    if num_workers > 1:
        from tokflow.pools.local import start_fork_server  # 0.04 s to import

        start_fork_server()


def is_local(kind: str | None = None) -> bool:
    """Return whether work is done on this machine: by default `TOKFLOW_POOL` says so.

    Raises: ConfigError where `kind`, or the environment variable, is no kind of pool, or one whose
    library is not installed.
    """
    where, asked = "pool", kind
    if asked is None:
        where, asked = "TOKFLOW_POOL", os.environ.get("TOKFLOW_POOL", "local")
    if asked == "local" or (asked == "ray" and find_spec("ray") is not None):
        return asked == "local"
    expected, found = "local, processes of this machine, or ray, a cluster", repr(asked)
    remedy = "correct it, or leave it out for processes of this machine"
    if asked == "ray":
        expected, found = "ray to be installed", "none"
        remedy = "pip install 'dagster-tokflow[ray]', here and on every node"
    raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)


def open_pool(jobs: int | None = None, kind: str | None = None) -> Pool:
    """Return a pool in which `num_jobs(jobs)` tasks are under way at once; of a cluster, where none
    is asked for, as many as it has cores.

    Raises: as `num_jobs` and `is_local`.
    """
    if not is_local(kind):
        from tokflow.pools.ray_pool import RayPool

        is_asked = jobs is not None or "TOKFLOW_JOBS" in os.environ
        return RayPool(num_jobs(jobs) if is_asked else None)
    if (num_workers := num_jobs(jobs)) == 1:
        return InProcess()
    from tokflow.pools.local import LocalPool  # 0.04 s to import

    return LocalPool(num_workers)

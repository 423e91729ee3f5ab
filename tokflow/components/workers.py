"""Processes that a step of Dagster works with."""

from enum import Enum

import dagster as dg

from tokflow.pools.pool import Workers

RESOURCE = "tokflow_workers"
"""Its key in a run's config."""


class PoolKind(Enum):
    """Where they are. A text could be `{env: NAME}`, and an error would show that variable."""

    local = "local"
    ray = "ray"


class WorkersResource(dg.ConfigurableResource[None]):
    """Processes that a step works with; by default one for each core, or `TOKFLOW_JOBS`."""

    jobs: int | None = None
    """Their number, 1 or more."""
    pool: PoolKind | None = None
    """`ray` for those of a Ray cluster, `local` for those of this machine; by default as
    `TOKFLOW_POOL` says, else local."""

    def of_build(self) -> Workers:
        """Return them as a build takes them."""
        return {"jobs": self.jobs, "pool": self.pool.value if self.pool else None}


WORKERS = WorkersResource()

"""Processes that a step of Dagster works with."""

import dagster as dg

from tokflow.pools.pool import Workers

RESOURCE = "tokflow_workers"
"""Its key in a run's config."""


class WorkersResource(dg.ConfigurableResource[None]):
    """Processes that a step works with; by default one for each core, or `TOKFLOW_JOBS`."""

    jobs: int | None = None
    """Their number, 1 or more."""
    pool: str | None = None
    """`ray` for those of a Ray cluster, `local` for those of this machine; by default as
    `TOKFLOW_POOL` says, else local."""

    def of_build(self) -> Workers:
        """Return them as a build takes them."""
        return {"jobs": self.jobs, "pool": self.pool}


WORKERS = WorkersResource()

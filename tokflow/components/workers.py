"""Processes that a step of Dagster works with."""

import dagster as dg

RESOURCE = "tokflow_workers"
"""Its key in a run's config."""


class Workers(dg.ConfigurableResource[None]):
    """Processes that a step works with; by default one for each core, or `TOKFLOW_JOBS`."""

    jobs: int | None = None
    """Their number, 1 or more."""


WORKERS = Workers()

"""Definitions in place of a dataset that cannot be loaded, so that no other goes with it."""

import hashlib
import logging
import os
import re

import dagster as dg

from tokflow.errors import TokflowError
from tokflow.pipeline.dagster_fields import dagster_name

IS_CHECKED = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Variable that `dg check defs` and `dagster definitions validate` set."""


def _safe(name: str) -> str:
    """Return a name that Dagster takes, and that no dataset has which can be loaded."""
    plain = dagster_name(name)
    safe = re.sub(r"\W+", "_", plain, flags=re.ASCII).strip("_")
    if safe and safe == plain:
        return safe
    return f"{safe}_{hashlib.sha256(name.encode()).hexdigest()[:8]}".strip("_")


def broken_definitions(name: str, error: TokflowError) -> dg.Definitions:
    """Return an asset `<name>/error` that says why, and a job `<name>_build` that fails with it.

    The log of the code location has it, too.

    Raises: the error, where definitions are only checked: there it is to be an error.
    """
    if os.environ.get(IS_CHECKED):
        raise error
    logging.getLogger("tokflow").error("%s", error)
    safe_name = _safe(name)
    asset = dg.AssetSpec(
        [safe_name, "error"],
        group_name=safe_name,
        kinds={"error"},
        description=f"This dataset cannot be loaded:\n\n    {error}",
    )

    @dg.op(name=f"{safe_name}_build_all")
    def fail() -> None:
        raise dg.Failure(str(error), allow_retries=False)

    @dg.job(
        name=f"{safe_name}_build",
        description=f"Fails, for this dataset cannot be loaded:\n\n    {error}",
        executor_def=dg.in_process_executor,
    )
    def build() -> None:
        fail()

    return dg.Definitions(assets=[asset], jobs=[build])

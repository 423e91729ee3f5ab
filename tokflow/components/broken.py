"""Datasets that cannot be loaded: an asset and a check that fail with the reason."""

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dagster as dg

from tokflow.errors import TokflowError
from tokflow.pipeline.dagster_fields import dagster_name

IS_CHECKED = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Variable that `dg check defs` and `dagster definitions validate` set."""

CHECK = "can_be_loaded"


@dataclass(frozen=True, slots=True)
class BrokenDataset:
    """A dataset that cannot be loaded, so that no other goes with it."""

    name: str
    error: TokflowError

    @property
    def dagster_name(self) -> str:
        """A name that Dagster takes, and that no dataset has which can be loaded."""
        plain = dagster_name(self.name)
        safe = re.sub(r"\W+", "_", plain, flags=re.ASCII).strip("_")
        if safe and safe == plain:
            return safe
        return f"{safe}_{hashlib.sha256(self.name.encode()).hexdigest()[:8]}".strip("_")

    @property
    def key(self) -> dg.AssetKey:
        """The key of its asset: `[<dataset>, "error"]`."""
        return dg.AssetKey([self.dagster_name, "error"])

    def evaluation(self) -> dg.AssetCheckEvaluation:
        """Return its check, failed: what makes the asset red before anything runs."""
        return dg.AssetCheckEvaluation(
            check_name=CHECK, passed=False, asset_key=self.key, description=str(self.error)
        )

    def asset(self) -> dg.AssetsDefinition:
        """Return an asset whose description is the error, and which fails with it."""

        @dg.asset(
            key=self.key,
            group_name=self.dagster_name,
            kinds={"error"},
            description=f"This dataset cannot be loaded:\n\n    {self.error}",
            check_specs=[dg.AssetCheckSpec(CHECK, asset=self.key)],
            output_required=False,
        )
        def error() -> Iterator[dg.AssetCheckResult]:
            yield dg.AssetCheckResult(passed=False, description=str(self.error))
            raise dg.Failure(str(self.error), allow_retries=False)

        return error

    def definitions(self) -> dg.Definitions:
        """Return the asset, and a job that fails under the name of the job that would build it."""
        asset = self.asset()
        job = dg.define_asset_job(
            f"{self.dagster_name}_build",
            selection=[asset],
            description=f"Fails. This dataset cannot be loaded:\n\n    {self.error}",
            executor_def=dg.in_process_executor,
        )
        return dg.Definitions(assets=[asset], jobs=[job])


def end_check(broken: Sequence[BrokenDataset]) -> None:
    """End the process with all that is wrong, where definitions are only checked.

    Dagster would show an exception with its traceback.
    """
    if broken and os.environ.get(IS_CHECKED):
        sys.exit("\n".join(str(of.error) for of in broken))

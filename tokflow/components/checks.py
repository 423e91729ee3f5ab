"""Asset checks: those of `tokflow.audit.checks`, as Dagster declares and reports them."""

from collections.abc import Container, Iterator, Sequence
from typing import Any

import dagster as dg

from tokflow.audit.checks import CHECKS, MAX_SHOWN, Checker, CheckOutcome
from tokflow.components.dagster_names import asset_key, packing_of_asset
from tokflow.components.markdown import MAX_ROWS
from tokflow.errors import shortened


def check_specs(stage: str, key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Return the checks of an asset as they are declared before it runs.

    They have no partitions: a run over 1,000 files would write 21 MB for each check before it
    begins, since Dagster 1.13 plans each partition with the names of all.
    """
    return [
        dg.AssetCheckSpec(
            name, asset=key, description=check.description, blocking=not check.is_warning
        )
        for name, check in CHECKS.get(stage, {}).items()
    ]


def check_results(
    checker: Checker, stage: Any, name: str, names: Sequence[str], only: Container[str]
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the checks called `only` of an asset, the export `name` for one, in its
    outputs of these names."""
    key = asset_key(checker.graph.dataset, stage, name)
    packing = packing_of_asset(stage, name)
    outputs = [checker.graph.output(stage, each, packing) for each in names]
    for outcome in checker.outcomes(stage, outputs, only=only):
        yield check_result(key, outcome)


def check_result(key: dg.AssetKey, outcome: CheckOutcome) -> dg.AssetCheckResult:
    """Return the result of a check of an asset; a table names each output in which it fails."""
    severity = dg.AssetCheckSeverity
    metadata: dict[str, Any] = {
        "num_checked": outcome.num_checked,
        "num_remembered": outcome.num_remembered,
        "num_problems": len(outcome.problems),
    }
    if outcome.findings:
        rows = [
            dg.TableRecord({"name": name, "num_problems": len(found), "first": found[0]})
            for name, found in outcome.findings.items()
        ]
        metadata["failed"] = dg.MetadataValue.table(rows[:MAX_ROWS])
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=outcome.name,
        passed=not outcome.findings,
        severity=severity.WARN if outcome.check.is_warning else severity.ERROR,
        description="\n".join(shortened(outcome.problems, MAX_SHOWN)) or None,
        metadata=metadata,
    )

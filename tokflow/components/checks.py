"""Asset checks: those of `tokflow.audit.checks`, as Dagster declares and reports them."""

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import dagster as dg

from tokflow.audit.checks import CHECKS, MAX_SHOWN, Checker, CheckOutcome
from tokflow.components.dagster_names import (
    FILES,
    asset_key,
    packing_of_asset,
)
from tokflow.components.markdown import MAX_REASON, MAX_ROWS
from tokflow.errors import shortened
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.status import FileStatus, file_statuses
from tokflow.shown import clipped, counted, printable
from tokflow.stage import stage_named

FILES_CHECK = "every_file_is_built"
"""The check of the list of raw files, and no other asset."""

OWN_CHECKS = {
    FILES: {FILES_CHECK: "Every raw file is built: none has failed, and none is new or stale."}
}
"""Checks of assets that no stage makes; never blocking, for in their run all may be built yet."""


def check_specs(stage: str, key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Return the checks of an asset as they are declared before it runs.

    They have no partitions: a run over 1,000 files would write 21 MB for each check before it
    begins, since Dagster 1.13 plans each partition with the names of all.
    """
    specs = [
        dg.AssetCheckSpec(
            name, asset=key, description=check.description, blocking=not check.is_warning
        )
        for name, check in CHECKS.get(stage, {}).items()
    ]
    own = OWN_CHECKS.get(stage, {})
    return [*specs, *(dg.AssetCheckSpec(of, asset=key, description=own[of]) for of in own)]


def check_results(
    checker: Checker,
    stage: str,
    name: str,
    names: Sequence[str],
    only: Container[str],
    *,
    is_alone: bool = False,
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the checks called `only` of an asset, the export `name` for one, in its
    outputs of these names. `is_alone`: no run of assets, which may build what is not built yet."""
    graph = checker.graph
    key = asset_key(graph.dataset, stage, name)
    if FILES_CHECK in only:
        statuses = file_statuses(make_plan(graph.dataset))
        yield check_files(key, [of for of in statuses if is_alone or of.state == "failed"])
    if stage_named(graph.dataset.stages, stage) is not None:
        packing = packing_of_asset(graph.dataset, stage, name)
        outputs = [graph.named(stage, each, packing) for each in names]
        for outcome in checker.outcomes(stage, outputs, only=only):
            yield check_result(key, outcome)


def check_files(key: dg.AssetKey, statuses: Sequence[FileStatus]) -> dg.AssetCheckResult:
    """Return whether every raw file is built, with the first that are not in a table.

    Files that failed are an error. Without any, those that nobody has built yet are a warning.
    """
    failed = [of for of in statuses if of.state == "failed"]
    others = [of for of in statuses if of.state in ("stale", "new")]
    said = [f"{counted(len(failed), 'file')} failed"] if failed else []
    said += [f"{counted(len(others), 'file')} not built yet"] if others else []
    rows = [_row_of_file(of) for of in [*failed, *others][:MAX_SHOWN]]
    metadata: dict[str, Any] = {
        "num_files": len(statuses),
        "num_failed": len(failed),
        "num_not_built_yet": len(others),
        **({"not_built": dg.MetadataValue.table(rows)} if rows else {}),
    }
    severity = dg.AssetCheckSeverity
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=FILES_CHECK,
        passed=not rows,
        severity=severity.ERROR if failed else severity.WARN,
        description=", ".join(said) or None,
        metadata=metadata,
    )


def _row_of_file(status: FileStatus) -> dg.TableRecord:
    cause, _, remedy = status.reason.partition("; ")
    texts = {"file": status.key, "state": status.state, "cause": cause}
    texts |= {"remedy": remedy or "run the build job"}
    return dg.TableRecord(
        {name: clipped(printable(text, keep="\n\t"), MAX_REASON) for name, text in texts.items()}
    )


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


def log_check(log: Callable[[Any], object], result: dg.AssetCheckResult) -> None:
    """Enter the result of a check that Dagster does not wait for: in a run, by
    `context.log_event`, or without one."""
    key, name = result.asset_key, result.check_name
    assert key is not None
    assert name is not None
    log(
        dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=name,
            passed=result.passed,
            metadata=result.metadata,
            severity=result.severity,
            description=result.description,
            blocking=result.severity is dg.AssetCheckSeverity.ERROR,
        )
    )

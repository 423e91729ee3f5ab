"""Asset checks: those of `tokflow.audit.checks`, as Dagster declares and reports them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import dagster as dg

from tokflow.audit.checks import CHECKS, MAX_SHOWN, Checker, CheckOutcome
from tokflow.components.assets import FILES, asset_keys
from tokflow.components.reports import MAX_REASON, MAX_ROWS
from tokflow.errors import shortened
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.status import FileStatus, file_statuses
from tokflow.shown import clipped, counted, printable

FILES_CHECK = "every_file_is_built"
"""The check of the list of raw files, and no other asset."""

OF_FILES = {FILES: "Every raw file is built: none has failed, and none is new or stale."}
"""The description of that check, by its asset."""


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
    if about := OF_FILES.get(stage):  # never blocking, for in its run all may be built yet
        specs.append(dg.AssetCheckSpec(FILES_CHECK, asset=key, description=about))
    return specs


def recheck(dataset: Dataset, asked: Collection[dg.AssetCheckKey]) -> Iterator[dg.AssetCheckResult]:
    """Compute checks of what is built, of all files, since checks have no partitions, whatever is
    remembered; nothing is made."""
    graph = graph_of(dataset, offline=True)
    checker = Checker(graph, recheck=True)
    for (stage, name), key in asset_keys(dataset).items():
        names = {of.name for of in asked if of.asset_key == key}
        if FILES_CHECK in names:
            yield check_files(key, file_statuses(make_plan(dataset)))
        elif names:
            outputs = [of for of in graph.outputs_of(stage, graph.partitions) if of.variant == name]
            made = [of for of in outputs if of.is_made]
            for outcome in checker.outcomes(stage, made or outputs, only=names):
                yield check_result(key, outcome)


def check_files(key: dg.AssetKey, statuses: Sequence[FileStatus]) -> dg.AssetCheckResult:
    """Return whether every raw file is built, with the first that are not in a table.

    Files that failed are an error. Without any, those that nobody has built yet are a warning.
    """
    failed = [of for of in statuses if of.state == "failed"]
    others = [of for of in statuses if of.state in ("bad", "stale", "new")]
    said = [f"{counted(len(failed), 'file')} failed"] if failed else []
    said += [f"{counted(len(others), 'file')} not built yet"] if others else []
    rows = []
    for of in [*failed, *others][:MAX_SHOWN]:
        cause, _, remedy = of.reason.partition("; ")
        texts = {"file": of.key, "state": of.state, "cause": cause}
        texts |= {"remedy": remedy or "run the build job"}
        shown = {name: printable(text, keep="\n\t") for name, text in texts.items()}
        rows.append(dg.TableRecord({name: clipped(shown[name], MAX_REASON) for name in shown}))
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


def check_result(key: dg.AssetKey, outcome: CheckOutcome) -> dg.AssetCheckResult:
    """Return the result of a check of an asset; a table names each output in which it fails."""
    severity = dg.AssetCheckSeverity
    metadata: dict[str, Any] = {
        "num_checked": outcome.num_checked,
        "num_remembered": outcome.num_remembered,
        "num_not_computed": outcome.num_not_computed,
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

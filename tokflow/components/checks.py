"""Asset checks, those of `tokflow.audit.checks` as Dagster declares and reports them, and failures
of a run: why it fails, and the outputs that Dagster's pages show as failed, not green.

Dagster shows an output as failed where a run that failed was to make it, and has not since. A run
says at its beginning which assets it is to make, and of these which partitions, if it has keys;
without keys the build says so of what has failed. The output is green again as soon as it is
recorded anew, and an asset without partitions after a run that was to make it and did not fail.
"""

import logging
import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast, get_type_hints
from uuid import uuid4

import dagster as dg

from tokflow.audit.checks import CHECKS, MAX_SHOWN, Checker, CheckOutcome
from tokflow.components.assets import FILES, asset_key, asset_keys, is_of_all_files, is_partitioned
from tokflow.components.reports import MAX_REASON, MAX_ROWS
from tokflow.errors import FetchError, first_five, message_of, shortened
from tokflow.formatting import clipped, counted, printable
from tokflow.pipeline import fields, mixture, plan, results, status
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.stage import RAW

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
            name,
            asset=key,
            description=" ".join(str(check.find.__doc__).split()),
            blocking=not check.is_warning,
        )
        for name, check in CHECKS.get(stage, {}).items()
    ]
    if about := OF_FILES.get(stage):  # never blocking, for in its run all may be built yet
        specs.append(dg.AssetCheckSpec(FILES_CHECK, asset=key, description=about))
    return specs


def recheck(dataset: Dataset, asked: Collection[dg.AssetCheckKey]) -> Iterator[dg.AssetCheckResult]:
    """Compute checks of what is built, of all files, since checks have no partitions, whatever is
    remembered; nothing is made."""
    graph = mixture.graph_of(dataset, offline=True)
    checker = Checker(graph, recheck=True)
    for (stage, name), key in asset_keys(dataset).items():
        names = {of.name for of in asked if of.asset_key == key}
        if FILES_CHECK in names:
            yield check_files(key, status.file_statuses(plan.make_plan(dataset)))
        elif names:
            outputs = [of for of in graph.outputs_of(stage, graph.partitions) if of.variant == name]
            made = [of for of in outputs if of.is_made]
            for outcome in checker.outcomes(stage, made or outputs, only=names):
                yield check_result(key, outcome)


def check_files(key: dg.AssetKey, statuses: Sequence[status.FileStatus]) -> dg.AssetCheckResult:
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
    key, name = cast(dg.AssetKey, result.asset_key), str(result.check_name)
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


FETCH_AGAIN = dg.RetryPolicy(
    max_retries=2, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""Retries on top of those of each download: a server may be away for longer. Not the policy of a
step, since with one Dagster begins a step again that a user has terminated."""

MAX_FAILED = 50
"""Files that a failure lists."""

MAX_LINE = 1_000
"""Characters of what it says of one."""

MAX_MARKED = 1_000
"""Outputs that one run marks, since each takes some 5 ms; those without partitions come first."""

FailedOutput: TypeAlias = tuple[str, str, str | None]
"""Stage and name of an asset, and the partition of one that has partitions."""

LISTING: FailedOutput = (FILES, "", None)
"""The list of raw files, which a mixture does not have."""

_event_of = dg.DagsterEvent.build_asset_materialization_planned_event
# Dagster exports the class of this argument nowhere.
_Planned = get_type_hints(_event_of, vars(sys.modules[dg.DagsterEvent.__module__]))[
    "asset_materialization_planned_data"
]


def mark_failed(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    dataset: Dataset,
    outputs: Sequence[FailedOutput],
) -> None:
    """Let Dagster show these outputs as failed once this run has failed; at most `MAX_MARKED`."""
    _mark(context.instance, context.run, dataset, outputs)
    if (num_more := len(outputs) - MAX_MARKED) > 0:
        said = counted(num_more, "more output")
        context.log.warning("%s failed, which the pages of assets do not show as failed", said)


def mark_bad_files(
    context: dg.AssetExecutionContext, dataset: Dataset, failed: Sequence[results.StageFailure]
) -> None:
    """Let Dagster show the tokens of bad raw files as failed though this run has not: a run that
    is entered as failed was to make them."""
    steps = [of for of in dataset.stages if of.has_engine]
    outputs = [(step.name, "", of.name) for step in steps for of in failed]
    if outputs:
        name = f"{fields.dagster_name(dataset.name)}_bad_files"
        tags = {".dagster/tokflow_of_run": context.run.run_id}
        run = dg.DagsterRun(
            name, run_id=str(uuid4()), status=dg.DagsterRunStatus.FAILURE, tags=tags
        )
        _mark(context.instance, context.instance.add_run(run), dataset, outputs)


def _mark(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    dataset: Dataset,
    outputs: Sequence[FailedOutput],
) -> None:
    for stage, name, partition in outputs[:MAX_MARKED]:
        planned = _Planned(asset_key(dataset, stage, name), partition=partition)
        event = _event_of(run.job_name, "", planned)
        instance.report_dagster_event(event, run.run_id, log_level=logging.DEBUG)


def repeat_events(
    context: dg.AssetExecutionContext, dataset: Dataset, *, but: Collection[FailedOutput]
) -> None:
    """Record again what a run was to make and found as it is, but for what has failed: without an
    event Dagster shows it as failed, or as not made. Each partition has one already."""
    for (stage, name), key in asset_keys(dataset).items():
        is_meant = key in context.selected_asset_keys and not is_partitioned(dataset, stage)
        if is_meant and (stage, name, None) not in but:
            last = context.instance.get_latest_materialization_event(key)
            if last and last.run_id != context.run.run_id and last.asset_materialization:
                context.log_event(last.asset_materialization)


def failed_outputs(
    graph: BuildGraph,
    failed: Sequence[results.StageFailure],
    *,
    made: Iterable[results.StageResult] = (),
    needed: Container[tuple[str, str]] | None = None,
) -> list[FailedOutput]:
    """Return what failed, and all that would be made of it, except what is `made`; those without
    partitions come first. `needed`: of these assets alone.

    Without a failure checks have kept the exports from being made. A raw file that cannot be read
    stays what it is: its tokens have failed. A failure by another name than that of a partition, as
    of a mixture's source, is one of all partitions.
    """
    dataset, partitions = graph.dataset, graph.partitions
    there = {(of.output.stage, of.output.variant, of.output.key or None) for of in made}
    of_stage: dict[str, list[results.StageFailure]] = {}
    for of in failed:
        of_stage.setdefault(of.stage, []).append(of)
    before = {of.name for of in failed if graph.steps.get(of.stage) is None}  # raw, or of a source
    lost = {(RAW, ""): set(partitions) if before - partitions.keys() else before}
    found: list[FailedOutput] = []
    has_failed = bool(before)
    for step in dataset.stages:
        variants, own = step.variants(dataset), of_stage.get(step.name, [])
        is_whole = step.is_of_file and any(of.name not in partitions for of in own)
        is_whole |= bool(own) and step.decides_all
        is_whole |= is_of_all_files(dataset, step.name) and (not failed or has_failed)
        has_failed |= bool(own)  # what is made of all files waits for all that comes before
        for variant in variants:
            is_packing = step.is_of_file and len(variants) > 1
            themselves = {of.name for of in own if not is_packing or of.packing == variant}
            inputs = [
                (False, lost[RAW, ""])
                if of.dataset
                else (of.reach == "all", lost.get((of.stage, of.variant), set()))
                for of in step.inputs(dataset, variant)
            ]
            keys_lost = lost[step.name, variant] = set()
            for key in partitions if step.is_of_file else [""]:
                is_behind = any(keys if is_all else {key, ""} & keys for is_all, keys in inputs)
                output = step.name, variant, key or None
                is_lost = is_whole or is_behind or (key or variant) in themselves
                if is_lost and output not in there:
                    keys_lost.add(key)
                    found += [output] if needed is None or output[:2] in needed else []
    return sorted(found, key=lambda of: of[2] is not None)


def exports_and_files(dataset: Dataset) -> list[FailedOutput]:
    """Return what no run makes that ends before it has looked at each file."""
    listing = [] if dataset.mixture else [LISTING]
    steps = [of for of in dataset.stages if is_of_all_files(dataset, of.name)]
    return [*listing, *((of.name, name, None) for of in steps for name in of.variants(dataset))]


def failure_of(
    graph: BuildGraph,
    errors: Mapping[str, Exception],
    *,
    num_keys: int,
    problems: Sequence[str] = (),
) -> dg.Failure:
    """Return the failure that names each file, of `num_keys`, which could not be built, and the
    problems that checks found."""
    keys_of: dict[str, list[str]] = {}
    for key, error in errors.items():
        keys_of.setdefault(message_of(error, where=key), []).append(key)
    said = [
        printable(f"{first_five(keys)}: {message}", keep="\n\t")
        for message, keys in keys_of.items()
    ]
    lines = [clipped(line, MAX_LINE) for line in said]
    if errors and num_keys > 1:
        rest = "; the others were, and are recorded" if len(errors) < num_keys else ""
        head = f"{len(errors):,} of {num_keys:,} files could not be built{rest}"
        lines = [head, *shortened(lines, MAX_FAILED)]
    failure = dg.Failure(
        f"{graph.dataset.name}: " + "\n".join([*lines, *problems]),
        metadata={"files": dg.MetadataValue.json(list(errors)[:MAX_FAILED])},
        allow_retries=any(isinstance(error, FetchError) for error in errors.values()),
    )
    failure.__cause__ = next(iter(errors.values()), None)
    return failure


def again_if_fetched(
    failure: dg.Failure, context: dg.AssetExecutionContext
) -> dg.Failure | dg.RetryRequested:
    """Return what a step raises: the failure, or where a server did not give a file, a request to
    try once more."""
    tries = context.retry_number
    if not failure.allow_retries or tries >= FETCH_AGAIN.max_retries:
        return failure
    again = dg.RetryRequested(FETCH_AGAIN.max_retries, FETCH_AGAIN.calculate_delay(tries + 1))
    again.__cause__ = failure
    return again

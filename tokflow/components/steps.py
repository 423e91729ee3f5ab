"""Bodies of the assets: each calls one function of `pipeline` and reports what it made."""

import hashlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from tokflow.audit.checks import Checker
from tokflow.components.checks import check_results
from tokflow.components.dagster_names import (
    FILES,
    REPORT,
    asset_keys,
    build_job_name,
    is_partitioned,
    packing_of_asset,
)
from tokflow.components.failed_outputs import failed_outputs, mark_failed
from tokflow.components.file_partitions import (
    known_files,
    known_partitions,
    record_raw,
    record_status,
    report_listing,
    report_raw,
)
from tokflow.components.history import AssetHistory
from tokflow.components.report_asset import report_page
from tokflow.components.reports import Report, report
from tokflow.errors import (
    FetchError,
    MissingOutputError,
    TokflowError,
    first_five,
    message_of,
    shortened,
)
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.failures import note_failures
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.lines import Lines, now_and_then
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.results import StageFailure, StageResult
from tokflow.pipeline.run import make_output, make_stage
from tokflow.pools import Workers, open_pool
from tokflow.pools.pool import Pool
from tokflow.shown import clipped, printable
from tokflow.stage import RAW, stage_named

Results = Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]
Body = Callable[[dg.AssetExecutionContext], Results]

FETCH_AGAIN = dg.RetryPolicy(
    max_retries=2, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""Retries on top of those of each download: a server may be away for longer. Not the policy of a
step, since with one Dagster begins a step again that a user has terminated."""

MAX_SHOWN = 50
"""Files that a failure lists."""

MAX_LINE = 1_000
"""Characters of what it says of one."""


RESOURCE = "tokflow_workers"
"""Its key in a run's config."""


class PoolKind(Enum):
    """Kind of pool. A text could be `{env: NAME}`, and an error would show that variable."""

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


def make_body(dataset: Dataset, stage: str, name: str = "") -> Body:
    """Return what an asset does: make its outputs, report and check them.

    Those are the partitions of the run, one key, a range or all, or the one output of the asset. A
    file that cannot be built stops no other: the step fails at the end, and names it. A run of
    checks alone computes them, whatever is remembered.
    """

    def body(context: dg.AssetExecutionContext) -> Results:
        checks = {key.name for key in context.selected_asset_check_keys}
        if not context.selected_asset_keys:
            yield from _recheck(dataset, stage, name, checks)
            return
        keys = _partitions(context, dataset) if is_partitioned(dataset, stage) else [name or stage]
        graph, history, is_again = _look(context, dataset, stage, name, keys)
        reports, errors = _make_or_note(context, graph, stage, name, keys)
        if _record_raw(context, graph, _fetched(graph, stage, name, keys)):
            history, is_again = AssetHistory(context.instance, dataset, stage, name), True
        if not errors:
            report = reports[keys[0]] if len(keys) == 1 else _joined(reports)
            # Dagster 1.13 gives all partitions of a run the one data version and the tags of the
            # one result (dagster issues 34013, 18649), and there must be one for what is
            # downstream to run. So each partition gets a second event, after it, with its own; the
            # latest counts. Tried: outputs that are not required, also of one op for all stages
            # (one event each, but what is downstream, anybody's, is skipped without a word),
            # metadata of a partition (no tags), events of an IO manager (beside Dagster's own).
            yield dg.MaterializeResult(
                data_version=dg.DataVersion(report.data_version),
                metadata=report.metadata,
                check_results=[*check_results(Checker(graph), stage, name, keys, checks)],
            )
        failure = _failure(context, graph, errors, num_keys=len(keys)) if errors else None
        is_last_try = not isinstance(failure, dg.RetryRequested)
        if is_last_try and (is_again or errors or len(keys) > 1):
            for event in history.events(reports):
                context.log_event(event)
        is_of_pipeline = stage_named(dataset.stages, stage) or is_partitioned(dataset, stage)
        if failure and is_last_try and is_of_pipeline:
            packing = packing_of_asset(dataset, stage, name)
            failed = [StageFailure(stage, key, error, packing) for key, error in errors.items()]
            mark_failed(context, dataset, failed_outputs(graph, failed))
            record_status(context.instance, dataset, context.log_event)
        if failure:
            raise failure

    return body


def _failure(
    context: dg.AssetExecutionContext,
    graph: BuildGraph,
    errors: Mapping[str, Exception],
    *,
    num_keys: int,
) -> dg.Failure | dg.RetryRequested:
    is_missing = any(isinstance(of, MissingOutputError) for of in errors.values())
    cures = [f"The job {build_job_name(graph.dataset)} makes all that is missing."] * is_missing
    return again_if_fetched(failure_of(graph, errors, num_keys=num_keys, problems=cures), context)


def _make_or_note(
    context: dg.AssetExecutionContext,
    graph: BuildGraph,
    stage: str,
    name: str,
    keys: Sequence[str],
) -> tuple[dict[str, Report], dict[str, Exception]]:
    """Make the outputs, and keep for a plan why some could not be made."""
    packing = packing_of_asset(graph.dataset, stage, name)
    workers = getattr(context.resources, RESOURCE).of_build()
    with open_pool(workers["jobs"], workers["pool"]) as pool:
        reports, errors = _make_all(context, graph, stage, packing, keys, pool)
        if graph.has_new_verdict:  # those that were made before it are to be made again
            reports, errors = _make_all(context, graph, stage, packing, keys, pool)
    failed = [StageFailure(stage, key, error, packing) for key, error in errors.items()]
    note_failures(graph, failed, tried=keys if is_partitioned(graph.dataset, stage) else None)
    return reports, errors


def _recheck(
    dataset: Dataset, stage: str, name: str, checks: Container[str]
) -> Iterator[dg.AssetCheckResult]:
    """Check an asset without making anything: of all files, since checks have no partitions, those
    that are built."""
    graph = graph_of(dataset, offline=True)
    names, packing = [name], packing_of_asset(dataset, stage, name)
    if is_partitioned(dataset, stage):
        names = list(graph.partitions)
    is_output = stage_named(dataset.stages, stage) is not None
    made = [of for of in names if is_output and graph.named(stage, of, packing).is_made]
    checker = Checker(graph, recheck=True)
    yield from check_results(checker, stage, name, made or names, checks, is_alone=True)


def _partitions(context: dg.AssetExecutionContext, dataset: Dataset) -> list[str]:
    """Return the partitions of the run, sorted."""
    if context.has_partition_key or context.has_partition_key_range:
        return sorted(context.partition_keys)
    raise dg.Failure(
        f"{context.asset_key.to_user_string()}: expected the partitions to build, found a run "
        "without any; choose some, or All of them, or launch the job "
        f"{build_job_name(dataset)}, which builds all that is missing",
        allow_retries=False,
    )


def _look(
    context: dg.AssetExecutionContext, dataset: Dataset, stage: str, name: str, keys: Sequence[str]
) -> tuple[BuildGraph, AssetHistory, bool]:
    """Return what a step is to make, the history with its parents as they are now, and whether one
    of them was recorded just now: a raw file for which this run had no step.

    All before anything is made, so that a file which changes meanwhile is newer than the outputs.
    """
    graph = graph_of(dataset, offline=True)
    read = _raw_keys(graph, stage, name, keys)
    is_new = bool(_record_raw(context, graph, read))
    history = AssetHistory(context.instance, dataset, stage, name).snapshot_parents()
    made = graph.online() if read else graph_of(dataset, is_refreshed=True)
    return made, history, is_new


def _raw_keys(graph: BuildGraph, stage: str, name: str, keys: Sequence[str]) -> list[str]:
    """Return the partitions of `raw` that the outputs of a stage are made from."""
    step = stage_named(graph.dataset.stages, stage)
    if step is None or not any(of.is_raw for of in step.inputs(graph.dataset, name)):
        return []
    read = keys if step.is_of_file else graph.partitions
    return [key for key in read if key in graph.partitions]


def _fetched(graph: BuildGraph, stage: str, name: str, keys: Sequence[str]) -> list[str]:
    """Return the keys with remote files, whose content is known once they are read."""
    read = _raw_keys(graph, stage, name, keys)
    return [key for key in read if not all(of.is_local for of in graph.partitions[key])]


def _record_raw(
    context: dg.AssetExecutionContext, graph: BuildGraph, keys: Sequence[str]
) -> list[str]:
    """Record raw files that are known, where Dagster does not have them; return their keys."""
    if not keys:
        return []
    found = known_partitions(graph, known_files(graph, keys))
    return record_raw(context.instance, graph, found, context.log_event)


def _make_all(
    context: dg.AssetExecutionContext,
    graph: BuildGraph,
    stage: str,
    packing: str,
    keys: Sequence[str],
    pool: Pool,
) -> tuple[dict[str, Report], dict[str, Exception]]:
    """Return the reports of the outputs that were made, and the errors of those that failed."""
    reports: dict[str, Report] = {}
    errors: dict[str, Exception] = {}
    lines = Lines(context.log.info)
    step = stage_named(graph.dataset.stages, stage)
    if step and step.is_of_file:
        lines.stage(stage, num_outputs=len(keys), num_bytes=_num_bytes(graph, keys))
        made = make_stage(graph, stage, keys, pool, variant=packing, advance=lines.advance)
        for key, result in made.items():
            if isinstance(result, StageResult):
                lines.made(result)
                reports[key] = report(result)
            else:
                errors[key] = result
        return reports, errors
    log = now_and_then(context.log.info)
    for number, key in enumerate(keys, start=1):
        try:
            reports[key] = _make(graph, stage, key, lines)
        except (TokflowError, OSError) as error:
            errors[key] = error
        log(partial("{:,} of {:,} files, last {}".format, number, len(keys), key))
    *_, last = asset_keys(graph.dataset)
    if last in ((stage, ""), (stage, keys[0])):  # all other steps are through
        record_status(context.instance, graph.dataset, context.log_event)
    return reports, errors


def _make(graph: BuildGraph, stage: str, name: str, lines: Lines) -> Report:
    """Look at one raw file or at all, or make the tokenizer, an export or the report; return the
    report for Dagster."""
    make_own = {
        RAW: lambda: report_raw(graph.raw(name), graph.listed[name]),
        FILES: lambda: _list_files(graph.dataset),
        REPORT: lambda: report_page(graph.dataset),
    }.get(stage)
    if make_own is not None:
        return make_own()
    made = make_output(graph, stage, name)
    lines.made(made)
    return report(made)


def _list_files(dataset: Dataset) -> Report:
    graph = graph_of(dataset, offline=True, is_refreshed=True)
    return report_listing(graph, known_files(graph))


def _num_bytes(graph: BuildGraph, keys: Sequence[str]) -> int:
    """Return the bytes of raw files; 0 where the size of some is not known before they are
    fetched."""
    sources = [of for key in keys for of in graph.partitions.get(key, ())]
    if not all(of.is_local or of.num_bytes is not None for of in sources):
        return 0
    paths = (Path(of.url) for of in sources if of.is_local)
    here = sum(path.stat().st_size for path in paths if path.is_file())
    return here + sum(of.num_bytes or 0 for of in sources)


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
        lines = [head, *shortened(lines, MAX_SHOWN)]
    failure = dg.Failure(
        f"{graph.dataset.name}: " + "\n".join([*lines, *problems]),
        metadata={"files": dg.MetadataValue.json(list(errors)[:MAX_SHOWN])},
        allow_retries=any(isinstance(error, FetchError) for error in errors.values()),
    )
    failure.__cause__ = next(iter(errors.values()), None)
    return failure


def again_if_fetched(
    failure: dg.Failure, context: dg.OpExecutionContext | dg.AssetExecutionContext
) -> dg.Failure | dg.RetryRequested:
    """Return what a step raises: the failure, or where a server did not give a file, a request to
    try once more."""
    tries = context.retry_number
    if not failure.allow_retries or tries >= FETCH_AGAIN.max_retries:
        return failure
    again = dg.RetryRequested(FETCH_AGAIN.max_retries, FETCH_AGAIN.calculate_delay(tries + 1))
    again.__cause__ = failure
    return again


def _joined(reports: Mapping[str, Report]) -> Report:
    text = "\n".join(f"{key} {report.data_version}" for key, report in reports.items())
    return Report(hashlib.sha256(text.encode()).hexdigest(), {})

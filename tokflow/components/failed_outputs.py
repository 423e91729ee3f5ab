"""Failures of a run: why it fails, and the outputs that Dagster's pages show as failed, not green.

Dagster shows an output as failed where a run that failed was to make it, and has not since. A run
says at its beginning which assets it is to make, and of these which partitions, if it has keys;
without keys the build says so of what has failed. The output is green again as soon as it is
recorded anew, and an asset without partitions after a run that was to make it and did not fail.
"""

import logging
import sys
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TypeAlias, get_type_hints
from uuid import uuid4

import dagster as dg

from tokflow.components.assets import FILES, asset_key, asset_keys, is_of_all_files, is_partitioned
from tokflow.errors import FetchError, first_five, message_of, shortened
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.fields import dagster_name
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.results import StageFailure, StageResult
from tokflow.shown import clipped, counted, printable
from tokflow.stage import RAW

FETCH_AGAIN = dg.RetryPolicy(
    max_retries=2, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""Retries on top of those of each download: a server may be away for longer. Not the policy of a
step, since with one Dagster begins a step again that a user has terminated."""

MAX_SHOWN = 50
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
    context: dg.AssetExecutionContext, dataset: Dataset, failed: Sequence[StageFailure]
) -> None:
    """Let Dagster show the tokens of bad raw files as failed though this run has not: a run that
    is entered as failed was to make them."""
    steps = [of for of in dataset.stages if of.has_engine]
    outputs = [(step.name, "", of.name) for step in steps for of in failed]
    if outputs:
        name = f"{dagster_name(dataset.name)}_bad_files"
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
    failed: Sequence[StageFailure],
    *,
    made: Iterable[StageResult] = (),
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
    of_stage: dict[str, list[StageFailure]] = {}
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
        lines = [head, *shortened(lines, MAX_SHOWN)]
    failure = dg.Failure(
        f"{graph.dataset.name}: " + "\n".join([*lines, *problems]),
        metadata={"files": dg.MetadataValue.json(list(errors)[:MAX_SHOWN])},
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

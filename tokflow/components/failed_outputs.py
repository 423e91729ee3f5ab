"""Outputs that a failing run could not make, as Dagster's pages show them: failed, and not green.

Dagster shows an output as failed where a run that failed was to make it, and has not since. A run
of assets says at its beginning what it is to make; the build job, which is none, says so of what
has failed. The output is green again as soon as it is recorded anew.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias, get_type_hints

import dagster as dg

from tokflow.components.dagster_names import FILES, asset_key
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.results import StageFailure, StageResult
from tokflow.pipeline.stages import up_to
from tokflow.shown import counted
from tokflow.stage import Stage, stage_named

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
    outputs: Iterable[FailedOutput],
) -> None:
    """Let Dagster show these outputs as failed once this run has failed; at most `MAX_MARKED`."""
    outputs = iter(outputs)
    for stage, name, partition in islice(outputs, MAX_MARKED):
        planned = _Planned(asset_key(dataset, stage, name), partition=partition)
        event = _event_of(context.run.job_name, "", planned)
        context.instance.report_dagster_event(event, context.run.run_id, log_level=logging.DEBUG)
    if num_more := sum(1 for _ in outputs):
        said = counted(num_more, "more output")
        context.log.warning("%s failed, which the pages of assets do not show as failed", said)


def failed_outputs(
    graph: BuildGraph,
    failed: Sequence[StageFailure],
    *,
    made: Iterable[StageResult] = (),
    until: str | None = None,
) -> Iterator[FailedOutput]:
    """Yield what failed, and all that would be made of it up to a stage, except what is `made`.

    Without a failure checks have kept the exports from being made. A raw file that cannot be read
    stays what it is: its tokens have failed.
    """
    there = {(of.output.stage, of.output.variant, of.output.key or None) for of in made}
    dataset = graph.dataset
    steps = dataset.stages if until is None else up_to(until, dataset.stages)
    stages = {of.name for of in steps}
    for output in (*_of_dataset(dataset, failed), *_of_files(graph, failed)):
        if output[0] in stages and output not in there:
            yield output


def exports_and_files(dataset: Dataset) -> list[FailedOutput]:
    """Return what no run makes that ends before it has looked at each file."""
    listing = [] if dataset.mixture else [LISTING]
    return [*listing, *((of.name, name, None) for of, name in _of_all_files(dataset))]


def _of_all_files(dataset: Dataset) -> list[tuple[Stage, str]]:
    """Return the stages and variants that are made from all partitions."""
    steps = [of for of in dataset.stages if not (of.is_of_file or of.decides_all)]
    return [(of, variant) for of in steps for variant in of.variants(dataset)]


def _of_dataset(dataset: Dataset, failed: Sequence[StageFailure]) -> Iterator[FailedOutput]:
    order, stages = _order(dataset), {of.stage for of in failed}
    for step in dataset.stages:
        if step.decides_all and step.name in stages:
            yield step.name, "", None
    first = min((order.get(stage, 0) for stage in stages), default=0)
    for step, variant in _of_all_files(dataset):
        alone = {of.name for of in failed} if stages == {step.name} else None
        if first <= order[step.name] and (alone is None or variant in alone):
            yield step.name, variant, None


def _of_files(graph: BuildGraph, failed: Sequence[StageFailure]) -> Iterator[FailedOutput]:
    order = _order(graph.dataset)
    first_of_all = _first_of_all(graph, failed)
    first: dict[str, int] = {}  # stage of each file, by its number
    for of in failed:
        first[of.name] = min(order.get(of.stage, 0), first.get(of.name, first_of_all))
    themselves = {(of.stage, of.name, of.packing) for of in failed}
    for step in graph.dataset.stages:
        variants = step.variants(graph.dataset)
        for variant in variants if step.is_of_file else ():
            for key in graph.partitions:
                behind = order[step.name] - first.get(key, first_of_all)
                is_itself = len(variants) == 1 or (step.name, key, variant) in themselves
                if behind > 0 or (behind == 0 and is_itself):
                    yield step.name, variant, key


def _order(dataset: Dataset) -> dict[str, int]:
    """Return the ordinal of each stage by its name; 0 is that of the raw files."""
    return {of.name: number for number, of in enumerate(dataset.stages, start=1)}


def _first_of_all(graph: BuildGraph, failed: Sequence[StageFailure]) -> int:
    """Return the number of the first stage that no file has for the failure of another output."""
    dataset, order = graph.dataset, _order(graph.dataset)
    of_files = [of for of in dataset.stages if of.is_of_file]
    inputs = {order[step.name]: step.all_inputs(dataset) for step in of_files}
    counted = [at for at, of in inputs.items() if any(each.is_of_all_here for each in of)]
    behind_tokens = min(at for at, of in inputs.items() if not any(each.is_raw for each in of))
    firsts = [len(order) + 1]
    for of in failed:
        number = order.get(of.stage, 0)
        if (step := stage_named(dataset.stages, of.stage)) and step.decides_all:
            firsts.append(number + 1)
        elif of.name not in graph.partitions and (not number or graph.is_of_file(of.stage)):
            firsts += counted or [max(number, behind_tokens)]  # of a source, say
        else:
            firsts += [each for each in counted if number < each]
    return min(firsts)

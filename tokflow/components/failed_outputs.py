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

from tokflow.components.dagster_names import asset_key, asset_keys
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import FILE_STAGES, STAGES, Stage
from tokflow.pipeline.results import StageFailure, StageResult
from tokflow.shown import counted

MAX_MARKED = 1_000
"""Outputs that one run marks, since each takes some 5 ms; those without partitions come first."""

FailedOutput: TypeAlias = tuple[str, str, str | None]
"""Stage and name of an asset, and the partition of one that has partitions."""

LISTING: FailedOutput = ("files", "", None)
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
    until: Stage = "export",
) -> Iterator[FailedOutput]:
    """Yield what failed, and all that would be made of it up to a stage, but for what is `made`.

    Without a failure checks have kept the exports from being made. A raw file that cannot be read
    stays what it is: its tokens have failed.
    """
    there = {
        (of.output.stage, of.output.asset_name, of.output.name if of.output.is_of_file else None)
        for of in made
    }
    stages: Sequence[str] = STAGES[: STAGES.index(until) + 1]
    for output in (*_of_dataset(graph.dataset, failed), *_of_files(graph, failed)):
        if output[0] in stages and output not in there:
            yield output


def exports_and_files(dataset: Dataset) -> list[FailedOutput]:
    """Return what no run makes that ends before it has looked at each file."""
    assets = asset_keys(dataset)
    return [(stage, name, None) for stage, name in assets if stage in ("files", "export")]


def _of_dataset(dataset: Dataset, failed: Sequence[StageFailure]) -> Iterator[FailedOutput]:
    stages = {of.stage for of in failed}
    if "tokenizer" in stages and dataset.mixture is None:
        yield "tokenizer", "", None
    alone = {of.name for of in failed} if stages == {"export"} else None
    for export in dataset.exports:
        if alone is None or export.name in alone:
            yield "export", export.name, None


def _of_files(graph: BuildGraph, failed: Sequence[StageFailure]) -> Iterator[FailedOutput]:
    first_of_all = _first_of_all(graph, failed)
    first: dict[str, int] = {}  # stage of each file, by its number
    for of in failed:
        first[of.name] = min(STAGES.index(of.stage), first.get(of.name, first_of_all))
    packed = {(of.name, of.packing) for of in failed if of.stage == "sequences"}
    for stage, name in asset_keys(graph.dataset):
        for key in graph.partitions if stage in FILE_STAGES else ():
            behind = STAGES.index(stage) - first.get(key, first_of_all)
            if behind > 0 or (behind == 0 and (stage != "sequences" or (key, name) in packed)):
                yield stage, name, key


def _first_of_all(graph: BuildGraph, failed: Sequence[StageFailure]) -> int:
    """Return the number of the first stage that no file has for the failure of another output."""
    tokens, split = STAGES.index("tokens"), STAGES.index("split")
    is_counted = graph.dataset.split.scope == "dataset"
    firsts = [len(STAGES)]
    for of in failed:
        is_of_others = of.stage != "export" and of.name not in graph.partitions  # of a source, say
        if of.stage == "tokenizer":
            firsts.append(tokens)
        elif is_of_others or (is_counted and STAGES.index(of.stage) < split):
            firsts.append(split)
    return min(firsts)

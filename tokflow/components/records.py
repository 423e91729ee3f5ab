"""Record of what tokflow built outside of Dagster, entered into its history."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import dagster as dg

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.build.output import Output
from tokflow.build.results import StageResult
from tokflow.components.checks import check_results
from tokflow.components.dagster_names import FILE_STAGES
from tokflow.components.file_partitions import known_files, record_listing, record_raw, register
from tokflow.components.history import AssetHistory
from tokflow.components.reports import data_version, report
from tokflow.store.manifest import read_run


@dataclass(frozen=True, slots=True)
class RecordedBuild:
    """Result of `record_build`."""

    num_materializations: int
    """0 where Dagster knew all of it."""
    problems: tuple[str, ...]
    """Findings of asset checks that would harm training, in the outputs new to Dagster."""
    warnings: tuple[str, ...]
    """Findings that a person should look at, such as a text in two parts."""


def record_build(
    instance: dg.DagsterInstance,
    dataset: Dataset,
    keys: Iterable[str],
    *,
    is_checked: bool = True,
) -> RecordedBuild:
    """Record the outputs in the store that Dagster does not know, or knows as another version.

    Of the raw files `keys`, which need not lie side by side, of the tokenizer and the exports.
    They get the metadata, versions and checks that they would have in a run, so the web UI shows
    as stale exactly what a rebuild would remake. Nothing is built and no run is launched: what
    was made without one is a materialization without one.

    Each materialization costs 10 to 20 ms, for it is two commits; `is_checked` costs as much as
    reading the new outputs once.
    """
    graph, keys = BuildGraph(dataset), sorted(keys)
    register(instance, dataset, keys)
    num_new = len(record_raw(instance, graph, {key: graph.raw(key) for key in keys}))
    num_new += record_listing(instance, graph, known_files(graph))
    failed: list[dg.AssetCheckResult] = []
    for (stage, name), outputs in groupby(graph.outputs(keys), _asset_of):
        if stage == "export" and not all(graph.sequences(key).is_made for key in graph.partitions):
            break
        made = {of.name if stage in FILE_STAGES else "": of for of in outputs if of.is_made}
        versions = {partition: data_version(of) for partition, of in made.items()}
        history = AssetHistory(instance, dataset, stage, name)
        new = history.unrecorded(versions)
        history.record({of: report(_as_new(made[of])) for of in new})
        num_new += len(new)
        for result in check_results(graph, stage, name, new) if new and is_checked else ():
            _record_check(instance, history.key, result)
            failed += [] if result.passed else [result]
    severity = dg.AssetCheckSeverity
    return RecordedBuild(num_new, _said(failed, severity.ERROR), _said(failed, severity.WARN))


def _said(
    failed: Sequence[dg.AssetCheckResult], severity: dg.AssetCheckSeverity
) -> tuple[str, ...]:
    return tuple(
        f"{result.asset_key.to_user_string()}: {result.description}"
        for result in failed
        if result.severity is severity and result.asset_key
    )


def _asset_of(output: Output) -> tuple[str, str]:
    return output.stage, output.name if output.stage == "export" else ""


def _as_new(output: Output) -> StageResult:
    """Return an output that is new to Dagster as its maker would have returned it."""
    return StageResult(output, output.manifest(), is_new=True, run=read_run(output.folder))


def _record_check(
    instance: dg.DagsterInstance, key: dg.AssetKey, result: dg.AssetCheckResult
) -> None:
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=str(result.check_name),
            passed=result.passed,
            metadata=result.metadata,
            severity=result.severity,
            description=result.description,
            blocking=result.severity is dg.AssetCheckSeverity.ERROR,
        )
    )

"""What tokflow built outside of Dagster, entered into its history."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluation

from tokflow.build.dataset import Dataset
from tokflow.build.graph import FILE_STAGES, BuildGraph, Output, by_stage
from tokflow.build.results import StageResult
from tokflow.components import versions
from tokflow.components.assets import Stage, export_stage, parents
from tokflow.components.checks import check_results
from tokflow.components.names import asset_key
from tokflow.components.reports import (
    Report,
    report_export,
    report_raw,
    report_sequences,
    report_split,
    report_tokenizer,
    report_tokens,
)
from tokflow.components.sources import (
    known_files,
    record_files,
    record_one,
    record_partitions,
    register,
)
from tokflow.components.versions import recorded_versions
from tokflow.store.manifest import read_run


@dataclass(frozen=True, slots=True)
class Recorded:
    """What `record_build` told Dagster."""

    num_materializations: int
    """0 where Dagster knew all of it."""
    problems: tuple[str, ...]
    """What asset checks found that would harm training, in the outputs new to Dagster."""
    warnings: tuple[str, ...]
    """What asset checks found that a person should look at, such as a text in two parts."""


def record_build(
    instance: dg.DagsterInstance,
    dataset: Dataset,
    keys: Iterable[str],
    *,
    is_checked: bool = True,
) -> Recorded:
    """Record the outputs in the store that Dagster does not know, or knows as another version.

    Of the raw files `keys`, which need not lie side by side, of the tokenizer and the exports.
    They get the metadata, versions and checks that they would have in a run, so the web UI shows
    as stale exactly what a rebuild would remake. Nothing is built and no run is launched: what
    was made without one is a materialization without one.

    Each materialization costs 10 to 20 ms, for it is two commits; `is_checked` costs as much as
    reading the new outputs once.
    """
    recorder = _Recorder(instance, dataset, sorted(keys), is_checked=is_checked)
    recorder.run()
    return Recorded(
        recorder.num_materializations, tuple(recorder.problems), tuple(recorder.warnings)
    )


class _Recorder:
    """Goes through the stages in order, since each record names its parents' latest."""

    def __init__(
        self, instance: dg.DagsterInstance, dataset: Dataset, keys: list[str], *, is_checked: bool
    ) -> None:
        self.instance = instance
        self.dataset = dataset
        self.keys = keys
        self.is_checked = is_checked
        self.graph = BuildGraph(dataset)
        self.num_materializations = 0
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def run(self) -> None:
        self._record_raw()
        for stage, outputs in groupby(self.graph.outputs(self.keys), by_stage):
            made = [output for output in outputs if output.is_made]
            if stage == "export" and not all(
                self.graph.sequences(key).is_made for key in self.graph.sources
            ):
                return
            if stage in FILE_STAGES:
                self._record_stage(cast(Stage, stage), made)
            else:
                for output in made:
                    self._record_alone(output)
            if stage == "tokenizer" and not made:
                return

    def _record_raw(self) -> None:
        register(self.instance, self.dataset, self.keys)
        recorded = recorded_versions(self.instance, asset_key(self.dataset, "raw"))
        raw_files = {key: self.graph.raw_file(key) for key in self.keys}
        reports = {
            key: report_raw(raw, self.graph.sources[key])
            for key, raw in raw_files.items()
            if recorded.get(key) != raw.sha256
        }
        self._record_partitions("raw", reports, versions.RAW_VERSION)
        files = known_files(self.dataset, self.graph.sources)
        left_out = self.graph.listing.left_out
        self.num_materializations += record_files(
            self.instance, self.dataset, files, left_out=left_out
        )

    def _record_stage(self, stage: Stage, outputs: Sequence[Output]) -> None:
        key = asset_key(self.dataset, stage)
        recorded = recorded_versions(self.instance, key)
        new = [output for output in outputs if recorded.get(output.name) != output.fingerprint]
        reports = {output.name: self._report(output) for output in new}
        self._record_partitions(stage, reports, versions.code_version(self.dataset, stage))
        if reports:
            self._check(stage, key, list(reports))

    def _record_alone(self, output: Output) -> None:
        """Record an output that is of no one file: the tokenizer, or an export."""
        stage: Stage = "tokenizer"
        key = asset_key(self.dataset, "tokenizer")
        if output.stage == "export":
            stage = export_stage(self.graph.export_config(output.name))
            key = asset_key(self.dataset, "exports", output.name)
        version = versions.code_version(self.dataset, output.stage, output.name)
        if self._record_one(key, stage, self._report(output), version):
            self._check(stage, key, [output.name])

    def _report(self, output: Output) -> Report:
        """Return the report of an output as its maker would have given it."""
        made = StageResult(output, output.manifest(), is_new=True, run=read_run(output.folder))
        if output.stage == "tokenizer":
            return report_tokenizer(made)
        if output.stage == "tokens":
            return report_tokens(made, self.graph.tokenizer)
        if output.stage == "export":
            config = self.graph.export_config(output.name)
            return report_export(made, self.graph, config)
        return report_split(made) if output.stage == "split" else report_sequences(made)

    def _record_partitions(
        self, stage: Stage, reports: dict[str, Report], code_version: str
    ) -> None:
        record_partitions(
            self.instance,
            self.dataset,
            stage,
            reports,
            code_version=code_version,
            parents=[dependency.asset_key for dependency in parents(self.dataset, stage)],
        )
        self.num_materializations += len(reports)

    def _record_one(
        self, key: dg.AssetKey, stage: Stage, report: Report, code_version: str
    ) -> bool:
        is_new = record_one(
            self.instance,
            key,
            report,
            code_version=code_version,
            parents=[dependency.asset_key for dependency in parents(self.dataset, stage)],
        )
        self.num_materializations += is_new
        return is_new

    def _check(self, stage: Stage, key: dg.AssetKey, names: list[str]) -> None:
        if not self.is_checked:
            return
        for result in check_results(stage, key, self.graph, names):
            if not result.passed:
                is_error = result.severity is dg.AssetCheckSeverity.ERROR
                found = self.problems if is_error else self.warnings
                found.append(f"{key.to_user_string()}: {result.description}")
            self.instance.report_runless_asset_event(
                AssetCheckEvaluation(
                    asset_key=key,
                    check_name=str(result.check_name),
                    passed=result.passed,
                    metadata=result.metadata,
                    severity=result.severity,
                    description=result.description,
                    blocking=result.severity is dg.AssetCheckSeverity.ERROR,
                )
            )

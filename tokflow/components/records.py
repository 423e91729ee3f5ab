"""What tokflow built outside of Dagster, entered into its history."""

from collections.abc import Iterable
from dataclasses import dataclass

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluation

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph, Output
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
from tokflow.errors import TokflowError
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
        dataset, graph = self.dataset, self.graph
        self._record_raw()
        if not graph.tokenizer_output.is_made:
            return
        key = asset_key(dataset, "tokenizer")
        report = report_tokenizer(_found(graph.tokenizer_output))
        self._record_one(key, "tokenizer", report, versions.code_version(dataset, "tokenizer"))
        self._record_stage("tokens", versions.code_version(dataset, "tokens"))
        self._record_stage("split", versions.code_version(dataset, "split"))
        self._record_stage("sequences", versions.code_version(dataset, "sequences"))
        if all(self._output("sequences", key) for key in graph.sources):
            self._record_exports()

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

    def _record_stage(self, stage: Stage, code_version: str) -> None:
        key = asset_key(self.dataset, stage)
        recorded = recorded_versions(self.instance, key)
        outputs = [self._output(stage, name) for name in self.keys]
        reports = {
            output.name: self._report(stage, _found(output))
            for output in outputs
            if output is not None and recorded.get(output.name) != output.fingerprint
        }
        self._record_partitions(stage, reports, code_version)
        if reports:
            self._check(stage, key, list(reports))

    def _record_exports(self) -> None:
        for config in self.dataset.exports:
            output = self.graph.export(config)
            if output.is_made:
                key = asset_key(self.dataset, "exports", config.name)
                report = report_export(_found(output), self.graph, config)
                version = versions.code_version(self.dataset, "export", config.name)
                if self._record_one(key, export_stage(config), report, version):
                    self._check(export_stage(config), key, [config.name])

    def _output(self, stage: Stage, key: str) -> Output | None:
        """Return an output that is made; None for one that is not, or cannot be named yet."""
        outputs = {
            "tokens": self.graph.tokens,
            "split": self.graph.split,
            "sequences": self.graph.sequences,
        }
        try:
            output = outputs[stage](key)
        except (TokflowError, OSError):  # with scope dataset, it takes the tokens of all files
            return None
        return output if output.is_made else None

    def _report(self, stage: Stage, made: StageResult) -> Report:
        if stage == "tokens":
            return report_tokens(made, self.graph.tokenizer)
        return report_split(made) if stage == "split" else report_sequences(made)

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


def _found(output: Output) -> StageResult:
    """Return an output that is new to Dagster as its maker would have returned it."""
    return StageResult(output, output.manifest(), is_new=True, run=read_run(output.folder))

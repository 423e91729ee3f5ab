"""Builds inside a run of Dagster, recorded output by output, with their checks.

Staleness, automation and plots rest on that record; what is in the store already is reported as it
is, and once.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dagster as dg

from tokflow.audit.checks import Checker
from tokflow.components import checks
from tokflow.components.assets import FILES, asset_key, build_job_name, is_of_all_files
from tokflow.components.checks import FailedOutput
from tokflow.components.decisions import INPUTS_TAG, inputs_digest
from tokflow.components.file_partitions import FileChanges, look_at_sources, sync_files
from tokflow.components.history import AssetHistory
from tokflow.components.instance import events_of, kept_open, process_tags
from tokflow.components.report_asset import record_pages
from tokflow.components.reports import data_version, report
from tokflow.errors import MissingOutputError, RawFileError, TokflowError
from tokflow.formatting import counted, duration, printable, redacted
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import drop_tokens
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.plan import make_plan, proposed_group
from tokflow.pipeline.results import BuildResult, Reporter, StageBegun, StageFailure, StageResult
from tokflow.pipeline.run import FOR_MIXTURES, Build
from tokflow.pipeline.run_log import Lines
from tokflow.pipeline.stages import needed_for
from tokflow.pipeline.status import file_statuses
from tokflow.pools import Workers, open_pool
from tokflow.record.export_card import write_cards
from tokflow.split.stage import MIXED_SPLIT
from tokflow.stage import RAW, stage_named

SCHEDULE_TAG = "dagster/schedule_name"
"""Tag of a run that a schedule asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """Options of a build that is recorded; see `Build`."""

    partitions: Sequence[str] | None = None
    asked: Collection[tuple[str, str]] | None = None
    """The outputs that the run selects, by stage and variant, which are checked if their checks are
    selected, too; by default all, with all checks."""
    workers: Workers = field(default_factory=Workers)
    reporter: Reporter | None = None
    """Hears of the build; by default the run's log does."""
    recheck: bool = False
    """Compute also the checks that are known to pass."""

    def reads_files(self, dataset: Dataset) -> bool:
        """Return whether something is built that goes back to raw files, or to those of sources."""
        is_all = self.asked is None or dataset.mixture is not None
        return is_all or (RAW, "") in needed_for(self.asked or (), dataset)

    def is_of_all_files(self, dataset: Dataset) -> bool:
        """Return whether something is built that is made of all partitions."""
        return self.asked is None or any(is_of_all_files(dataset, stage) for stage, _ in self.asked)


@dataclass(frozen=True, slots=True)
class RecordedBuild:
    """Result of a build, and of the asset checks of all that is there."""

    built: BuildResult
    problems: tuple[str, ...]
    """Findings of asset checks that would harm training."""
    warnings: tuple[str, ...]
    """Findings that a person should look at, such as a text in two parts."""
    failure: dg.Failure | None
    """Why the run fails, which names each bad file; None where all is well."""
    num_recorded: int
    """Outputs that were new to Dagster."""
    red: Sequence[FailedOutput] = ()
    """Outputs that Dagster is to show as failed."""
    checks: Sequence[dg.AssetCheckResult] = ()
    """Results of the checks that the run selects, which its step is to yield."""
    not_computed: Sequence[str] = ()
    """Checks that need tokens which were dropped, and of how many outputs."""


def build_in_run(
    context: dg.AssetExecutionContext, graph: BuildGraph, options: BuildOptions
) -> RecordedBuild:
    """Bring the partitions up to date, build, report each output and check all of them, by default
    those that are not known to pass; of a mixture first its sources, up to their splits.

    Pages for people come last, and then what failed is marked so. `graph`: an offline one.
    """
    context.instance.add_run_tags(context.run.run_id, process_tags(context.run.run_id))
    dataset, is_asked = graph.dataset, options.asked is not None
    try:
        with kept_open(context.instance):
            recorded = _build_all(context, graph, options)
        is_bad = recorded.failure is not None
        is_other = bool(recorded.num_recorded or recorded.built.failed)
        is_news = is_other and (is_bad or options.is_of_all_files(dataset))
        write_cards(dataset, [of.output for of in recorded.built.made])
        record_pages(context, dataset, is_news=is_news, is_asked=is_asked and not is_bad)
    except Exception:
        checks.mark_failed(context, dataset, checks.exports_and_files(dataset))
        checks.repeat_events(context, dataset, but=checks.exports_and_files(dataset))
        raise
    if is_asked or is_bad:
        checks.mark_failed(context, dataset, recorded.red)
        checks.repeat_events(context, dataset, but=recorded.red)
    if is_asked or is_bad or options.partitions is not None or recorded.built.failed:
        return recorded
    num_dropped = drop_tokens(graph_of(dataset, offline=True))  # all checks and pages have read
    return replace(recorded, built=replace(recorded.built, dropped_bytes=num_dropped))


def _build_all(
    context: dg.AssetExecutionContext, graph: BuildGraph, options: BuildOptions
) -> RecordedBuild:
    instance = context.instance
    changes = look_at_sources(instance, graph.dataset, graph)
    if options.partitions is None and options.asked is None:  # what it leaves need not be tried
        with suppress(TokflowError):  # of the tokenizer, which the build names
            instance.add_run_tags(context.run.run_id, {INPUTS_TAG: inputs_digest(changes)})
    for source in graph.of_sources.values():
        of_source = look_at_sources(instance, source.dataset, source)
        all_files = replace(options, partitions=None, asked=FOR_MIXTURES)
        recorded = _build_one(context, of_source, all_files, is_source=True)
        if recorded.failure is not None:
            checks.mark_failed(context, source.dataset, recorded.red)
            record_pages(context, source.dataset, is_news=True)
            failed = [StageFailure(MIXED_SPLIT.name, source.dataset.name, recorded.failure)]
            return replace(recorded, red=checks.failed_outputs(graph, failed))
    if graph.of_sources:  # limits of its sources may take more files now
        graph = graph_of(graph.dataset, offline=True)
        changes = look_at_sources(instance, graph.dataset, graph)
    return _build_one(context, changes, options)


def _build_one(
    context: dg.AssetExecutionContext,
    changes: FileChanges,
    options: BuildOptions,
    *,
    is_source: bool = False,
) -> RecordedBuild:
    """Build a dataset, looked at just now; lines about a mixture's source begin with its name."""
    started, graph = time.perf_counter(), changes.graph
    dataset, said_before = graph.dataset, f"{graph.dataset.name}: " if is_source else ""
    keys = [key for key in options.partitions or graph.partitions if key in graph.partitions]
    keys = keys if options.reads_files(dataset) else []
    is_listed = is_source or options.is_of_all_files(dataset)

    def say(line: str) -> None:
        context.log.info("%s%s", said_before, printable(redacted(line), keep="\n\t"))

    shown = options.reporter or Lines(say)
    how: dict[str, Any] = {"log": events_of(context), "to_build": keys, "is_listed": is_listed}
    sync = partial(sync_files, context.instance, dataset, **how)
    synced = sync(changes=changes, progress=shown.recorded)
    if is_listed:
        say(str(synced))
        if proposed := proposed_group(graph):
            say(str(proposed))
    of_build: dict[str, Any] = {"only": options.partitions, "asked": options.asked}
    build = Build(graph.online(), keys, advance=shown.advance, **of_build)
    checked = None if is_source or options.asked is None else context.selected_asset_check_keys
    recorder = _Recorder(context, build, sync, recheck=options.recheck, checked=checked)
    failed = _checked(context, build, recorder, shown, options.workers)
    built = replace(build.result(), seconds=time.perf_counter() - started)
    gone = [of for of in built.bad_files if of.name not in build.graph.partitions]
    checks.mark_bad_files(context, dataset, gone)
    num_recorded = sum(map(len, recorder.entered.values()))
    said = f"{counted(built.num_files, 'file')}: {counted(built.num_new, 'output')} new, "
    said += f"{len(built.made) - built.num_new:,} up to date, {num_recorded:,} recorded, "
    say(f"{said}{duration(built.seconds)}")
    severity = dg.AssetCheckSeverity
    problems, warnings = (_said(failed, of) for of in (severity.ERROR, severity.WARN))
    failure = _failure(build.graph, built, options, problems)
    but: dict[str, Any] = {"made": built.made}
    but["needed"] = needed_for(FOR_MIXTURES, dataset) if is_source else None
    red = checks.failed_outputs(graph, built.failed, **but) if failure else []
    found, key, lacking = recorder.results, asset_key(dataset, FILES), recorder.not_computed
    if dg.AssetCheckKey(key, checks.FILES_CHECK) in context.selected_asset_check_keys:
        statuses = file_statuses(make_plan(dataset))  # not built yet is none of its business
        found = [*found, checks.check_files(key, [of for of in statuses if of.state == "failed"])]
    return RecordedBuild(built, problems, warnings, failure, num_recorded, red, found, lacking)


def _checked(
    context: dg.AssetExecutionContext,
    build: Build,
    recorder: "_Recorder",
    shown: Reporter,
    workers: Workers,
) -> list[dg.AssetCheckResult]:
    """Build, as far as checks find nothing wrong; return all checks that fail."""
    jobs, kind = workers.get("jobs"), workers.get("pool")
    dataset = build.graph.dataset
    with open_pool(jobs, kind) as pool, closing(build.events(pool)) as events:
        for event in events:
            if isinstance(event, StageBegun) and is_of_all_files(dataset, event.stage):
                failed = recorder.check()  # before what is made of all files
                if any(of.severity is dg.AssetCheckSeverity.ERROR for of in failed):
                    context.log.error("No export is made, for checks have failed.")
                    break
            shown.hear(event)
            recorder.hear(event)
    return recorder.check()


def _failure(
    graph: BuildGraph, built: BuildResult, options: BuildOptions, problems: Sequence[str]
) -> dg.Failure | None:
    """Return why a run fails; None where all is well."""
    asked = options.partitions or ()
    errors = {of.name: of.error for of in built.failed}
    for key in asked:
        if key not in graph.partitions:  # which Dagster knows and the dataset does not have
            try:
                graph.documents(key)  # of a file that a limit does not take
                graph.raw(key)
            except RawFileError as error:
                errors[key] = error
    if not errors and not problems:
        return None
    if options.asked is not None and any(
        isinstance(of, MissingOutputError) for of in errors.values()
    ):
        cure = f"The job {build_job_name(graph.dataset)} makes all that is missing."
        problems = [*problems, cure]
    is_of_files = any(key in graph.partitions for key in errors)
    num_keys = len(asked or graph.partitions) if is_of_files else 1
    return checks.failure_of(graph, errors, num_keys=num_keys, problems=problems)


def _said(
    failed: Sequence[dg.AssetCheckResult], severity: dg.AssetCheckSeverity
) -> tuple[str, ...]:
    return tuple(
        f"{result.asset_key.to_user_string()}: {result.description}"
        for result in failed
        if result.severity is severity and result.asset_key
    )


class _Recorder(Reporter):
    """Reports each output when it is there, unless Dagster has it in that version."""

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        build: Build,
        sync: Callable[..., object],
        *,
        recheck: bool,
        checked: Collection[dg.AssetCheckKey] | None,
    ) -> None:
        """`checked`: the checks that the run selects, None for all."""
        self._context = context
        self._enter = events_of(context)
        self._graph = build.graph
        self._dataset = build.graph.dataset
        self._sync = sync
        """Records the raw files as they are now."""
        self._recheck = recheck
        self._checked = checked
        self._is_behind = not all(of.is_local for of in self._graph.sources.values())
        """True until what the build has fetched is recorded, which is known once it began."""
        self._waiting: list[StageResult] = []
        """Tokenizer and tokens of a limited dataset, recorded once all files are known, after
        these."""
        self._histories: dict[tuple[str, str], AssetHistory] = {}
        """Histories of the assets of this stage, as they were when it began."""
        self._made: dict[tuple[str, str], list[Output]] = {}
        """Every output that is there, by asset."""
        self.entered: dict[tuple[str, str], list[Output]] = {}
        """Outputs that were new to Dagster, by asset."""
        self.results: list[dg.AssetCheckResult] = []
        """Checks that the run selects."""
        self.not_computed: list[str] = []
        """Checks that need tokens which were dropped."""
        self._failed: dict[tuple[str, str], list[dg.AssetCheckResult]] = {}
        """Checks that fail, of each asset that was checked."""

    def begun(self, begun: StageBegun) -> None:
        """Begin a stage, again from the tokens on where gigatoken turned out to be wrong."""
        step = stage_named(self._dataset.stages, begun.stage)
        if step is None or begun.is_more:
            return
        self._record_fetched()
        self._histories = {}
        if step.has_engine:
            stay = {of.name for of in self._dataset.stages if of.decides_all}
            for outputs in (self._made, self.entered):
                for asset in [asset for asset in outputs if asset[0] not in stay]:
                    del outputs[asset]
            self._waiting = [of for of in self._waiting if of.output.step.decides_all]
        else:
            self._record_waiting()
        if self._graph.limited is None:  # a file that changes from here on is newer than outputs
            for variant in step.variants(self._dataset):
                _ = self._history((step.name, variant)).tags

    def _history(self, asset: tuple[str, str]) -> AssetHistory:
        if asset not in self._histories:
            self._histories[asset] = AssetHistory(self._context.instance, self._dataset, *asset)
        return self._histories[asset]

    def made(self, made: StageResult) -> None:
        """Report the output, after what it is made from."""
        step = made.output.step
        if self._graph.limited is not None and (step.decides_all or step.has_engine):
            self._waiting.append(made)
        else:
            self._record(made)

    def _record_fetched(self) -> None:
        if self._is_behind:
            self._sync()
            self._is_behind = False

    def _record_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._sync(to_build=[of.output.name for of in waiting if of.output.step.is_of_file])
        for made in waiting:
            self._record(made)

    def _record(self, made: StageResult) -> None:
        output, partition = made.output, made.output.key
        asset = output.stage, output.variant
        self._made.setdefault(asset, []).append(output)
        history, context = self._history(asset), self._context
        is_asked = self._checked is not None and not output.step.is_of_file
        is_asked = is_asked and history.key in context.selected_asset_keys
        if history.unrecorded({partition: data_version(output)}):
            self.entered.setdefault(asset, []).append(output)
        elif not is_asked and not (output.step.has_latest and SCHEDULE_TAG in context.run.tags):
            return  # an export of a schedule tells by its time that the night went well
        history.record({partition: report(made)}, self._enter)

    def failed(self, failed: StageFailure) -> None:
        """Log the error at once; the run goes on."""
        level = logging.WARNING if failed.is_left_out else logging.ERROR
        said = printable(redacted(str(failed.explained)), keep="\n\t")
        self._context.log.log(level, "left out: %s" if failed.is_left_out else "%s", said)

    def check(self) -> list[dg.AssetCheckResult]:
        """Check what is there and was not checked yet; return all checks that fail.

        Dagster is told of what was computed, and of the checks of what is new to it.
        """
        self._record_fetched()
        self._record_waiting()
        selected = self._context.selected_asset_check_keys
        checker = Checker(self._graph, recheck=self._recheck)
        for asset in [asset for asset in self._made if asset not in self._failed]:
            key = asset_key(self._dataset, *asset)
            names = None
            if self._checked is not None:
                names = {of.name for of in self._checked if of.asset_key == key}
            self._failed[asset] = []
            for outcome in checker.outcomes(asset[0], self._made[asset], only=names):
                result = checks.check_result(key, outcome)
                self.not_computed += outcome.not_computed(asset[0])
                is_selected = dg.AssetCheckKey(key, outcome.name) in selected
                if is_selected:
                    self.results.append(result)
                elif outcome.is_news or asset in self.entered:
                    checks.log_check(self._context.log_event, result)
                self._failed[asset] += [] if result.passed else [result]
        return [of for failed in self._failed.values() for of in failed]

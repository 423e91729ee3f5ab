"""Job that builds a dataset in one run: what is missing or changed, of all files, and no key named.

It reports what it makes, output by output, so that staleness, automation and plots are as after
runs of the assets; what is in the store already is reported as it is.
"""

import signal
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dagster as dg

from tokflow.audit.checks import Checker
from tokflow.components.checks import check_result, log_check
from tokflow.components.console import CONSOLE_CONFIG, console_logger
from tokflow.components.dagster_names import asset_key, build_job_name
from tokflow.components.decisions import INPUTS_TAG, inputs_digest
from tokflow.components.failed_outputs import exports_and_files, failed_outputs, mark_failed
from tokflow.components.file_partitions import FileChanges, look_at_sources, sync_files
from tokflow.components.history import AssetHistory
from tokflow.components.instance import end_lost_runs, process_tags
from tokflow.components.report_asset import record_pages
from tokflow.components.reports import data_version, report
from tokflow.components.steps import RESOURCE, WORKERS, again_if_fetched, failure_of
from tokflow.errors import TokflowError, message_of
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.lines import Lines
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.results import BuildResult, Reporter, StageFailure, StageResult
from tokflow.pipeline.run import build_dataset
from tokflow.pools import Workers
from tokflow.shown import counted, duration
from tokflow.split.stage import MIXED_SPLIT
from tokflow.stage import stage_named

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""Run config without Dagster's log, for a terminal with a progress display."""

SCHEDULE_TAG = "dagster/schedule_name"
"""Tag of a run that a schedule asked for."""

MAX_RETRIES_TAG = "dagster/max_retries"
"""Tag of a run of this process, which Dagster's daemon cannot repeat and would promise to."""

Body = Callable[[dg.OpExecutionContext], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """Options of a build that is recorded; see `build_dataset`."""

    partitions: Sequence[str] | None = None
    workers: Workers = field(default_factory=Workers)
    reporter: Reporter | None = None
    """Hears of the build; by default the run's log does."""
    recheck: bool = False
    """Compute also the checks that are known to pass."""


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

    @property
    def is_news(self) -> bool:
        """True if a page about the dataset may say something else than before."""
        return bool(self.num_recorded or self.built.failed)


def build_job(dataset: Dataset, body: Body | None = None) -> dg.JobDefinition:
    """Return the job; `body` is what its one step does, by default all that the job promises."""

    @dg.op(
        name=f"{build_job_name(dataset)}_all",
        description="Build what is missing or changed, of all files, and report it.",
        required_resource_keys={RESOURCE},
        pool=dataset.pool,
    )
    def build_all(context: dg.OpExecutionContext) -> None:
        (body or partial(_build_or_fail, dataset))(context)

    @dg.job(
        name=build_job_name(dataset),
        description=f"Builds {dataset.name}: registers new raw files, makes what is missing or has "
        "changed, of all files, and the exports, and checks them. Nothing needs to be chosen.",
        tags=dataset.tags,
        resource_defs={RESOURCE: WORKERS},
        executor_def=dg.in_process_executor,
        logger_defs={"console": console_logger},
        config=CONSOLE_CONFIG,
    )
    def build() -> None:
        build_all()

    return build


def _build_or_fail(dataset: Dataset, context: dg.OpExecutionContext) -> None:
    workers = getattr(context.resources, RESOURCE).of_build()
    try:
        graph = graph_of(dataset, offline=True)
        failure = build_in_run(context, graph, BuildOptions(workers=workers)).failure
    except (TokflowError, OSError) as error:
        message = message_of(error, where=dataset.name)
        raise dg.Failure(f"{dataset.name}: {message}", allow_retries=False) from error
    if failure is not None:
        raise again_if_fetched(failure, context)


def run_build_job(
    instance: dg.DagsterInstance, graph: BuildGraph, options: BuildOptions | None = None
) -> RecordedBuild:
    """Execute the job in this process, as a run of `instance`.

    A file that cannot be built, or a check that fails, makes the run a failed one and raises
    nothing here. The report is not drawn, so that nobody waits for it; the next run that Dagster
    starts draws it.

    Raises: what kept anything from being built.
    """
    results: list[RecordedBuild] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}

    def body(context: dg.OpExecutionContext) -> None:
        _restore(handlers)  # Dagster raises the same for both, and sets no SIGTERM back
        result = build_in_run(context, graph, options or BuildOptions(), with_report=False)
        results.append(result)
        if result.failure is not None:
            raise result.failure

    end_lost_runs(instance)
    job, run_id = build_job(graph.dataset, body), str(uuid.uuid4())
    tags = {**process_tags(run_id), MAX_RETRIES_TAG: "0"}
    try:
        with suppress(dg.Failure):
            job.execute_in_process(QUIET, instance=instance, run_id=run_id, tags=tags)
    except dg.DagsterExecutionInterruptedError as error:
        raise KeyboardInterrupt from error
    finally:
        _restore(handlers)
    return results[0]


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


def build_in_run(
    context: dg.OpExecutionContext,
    graph: BuildGraph,
    options: BuildOptions,
    *,
    with_report: bool = True,
) -> RecordedBuild:
    """Bring the partitions up to date, build, report each output and check all of them, by default
    those that are not known to pass; of a mixture first its sources, up to their splits.

    What failed is marked so; pages for people come last. `graph`: an offline one.
    """
    context.instance.add_run_tags(context.run_id, process_tags(context.run_id))
    try:
        recorded = _build_all(context, graph, options)
    except Exception:
        mark_failed(context, graph.dataset, exports_and_files(graph.dataset))
        raise
    record_pages(context, graph.dataset, is_news=recorded.is_news, with_report=with_report)
    return recorded


def _build_all(
    context: dg.OpExecutionContext, graph: BuildGraph, options: BuildOptions
) -> RecordedBuild:
    instance = context.instance
    changes = look_at_sources(instance, graph.dataset, graph)
    if options.partitions is None:  # what it leaves need not be tried again
        with suppress(TokflowError):  # of the tokenizer, which the build names
            instance.add_run_tags(context.run_id, {INPUTS_TAG: inputs_digest(changes)})
    for source in graph.of_sources.values():
        of_source = look_at_sources(instance, source.dataset, source)
        every, name = replace(options, partitions=None), source.dataset.name
        recorded = _build_one(context, of_source, every, MIXED_SPLIT.name, said_before=f"{name}: ")
        if recorded.failure is not None:
            record_pages(context, source.dataset, is_news=True, with_report=False)
            failed = [StageFailure(MIXED_SPLIT.name, name, recorded.failure)]
            mark_failed(context, graph.dataset, failed_outputs(graph, failed))
            return recorded
    if graph.of_sources:  # limits of its sources may take more files now
        graph = graph_of(graph.dataset, offline=True)
        changes = look_at_sources(instance, graph.dataset, graph)
    return _build_one(context, changes, options)


def _build_one(
    context: dg.OpExecutionContext,
    changes: FileChanges,
    options: BuildOptions,
    until: str | None = None,
    *,
    said_before: str = "",
) -> RecordedBuild:
    """Build a dataset, looked at just now, up to a stage; `said_before` begins its log lines."""
    started, graph = time.perf_counter(), changes.graph
    dataset = graph.dataset
    sync = partial(
        sync_files,
        context.instance,
        dataset,
        log=context.log_event,
        to_build=graph.selected_keys(options.partitions),
    )

    def say(line: str) -> None:
        context.log.info("%s%s", said_before, line)

    say(str(sync(changes)))
    shown = options.reporter or Lines(say)
    recorder = _Recorder(context, dataset, shown, sync, recheck=options.recheck)
    what: dict[str, Any] = {"graph": graph, "partitions": options.partitions, "until": until}
    built = build_dataset(dataset, reporter=recorder, **what, **options.workers)
    failed = recorder.check()
    built = replace(built, seconds=time.perf_counter() - started)
    files, new = counted(built.num_files, "file"), counted(built.num_new, "output")
    num_old, num_recorded = len(built.made) - built.num_new, recorder.num_recorded
    said = f"{files}: {new} new, {num_old:,} up to date, {num_recorded:,} recorded"
    say(f"{said}, {duration(built.seconds)}")
    problems = _said(failed, dg.AssetCheckSeverity.ERROR)
    warnings = _said(failed, dg.AssetCheckSeverity.WARN)
    if (failure := _failure(graph, built, problems)) is not None:
        outputs = failed_outputs(graph, built.failed, made=built.made, until=until)
        mark_failed(context, dataset, outputs)
    return RecordedBuild(built, problems, warnings, failure, num_recorded)


def _failure(graph: BuildGraph, built: BuildResult, problems: tuple[str, ...]) -> dg.Failure | None:
    if not built.failed and not problems:
        return None
    errors = {failed.name: failed.error for failed in built.failed}
    is_of_files = any(key in graph.partitions for key in errors)
    num_keys = len(graph.partitions) if is_of_files else 1
    return failure_of(graph, errors, num_keys=num_keys, problems=problems)


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
        context: dg.OpExecutionContext,
        dataset: Dataset,
        shown: Reporter,
        sync: Callable[..., object],
        *,
        recheck: bool,
    ) -> None:
        self._context = context
        self._dataset = dataset
        self._shown = shown
        self._sync = sync
        """Records the raw files as they are now."""
        self._recheck = recheck
        self._waiting: list[StageResult] = []
        """Tokenizer and tokens of a limited dataset, recorded once all files are known, after
        these."""
        self._graph: BuildGraph | None = None
        """The graph of the build, once it has made anything."""
        self._histories: dict[tuple[str, str], AssetHistory] = {}
        """Histories of the assets of this stage, as they were when it began."""
        self._made: dict[tuple[str, str], list[Output]] = {}
        """Every output that is there, by asset."""
        self._recorded: dict[tuple[str, str], list[Output]] = {}
        """Outputs that were new to Dagster, by asset."""
        self._failed: dict[tuple[str, str], list[dg.AssetCheckResult]] = {}
        """Checks that fail, of each asset that was checked."""

    @property
    def num_recorded(self) -> int:
        """Outputs that were new to Dagster."""
        return sum(map(len, self._recorded.values()))

    def stage(self, stage: str, *, num_outputs: int, num_bytes: int) -> None:
        """Begin a stage, again from the tokens on where gigatoken turned out to be wrong."""
        self._histories = {}
        step = stage_named(self._dataset.stages, stage)
        if step and step.has_engine:
            stay = {of.name for of in self._dataset.stages if of.decides_all}
            for outputs in (self._made, self._recorded):
                for asset in [asset for asset in outputs if asset[0] not in stay]:
                    del outputs[asset]
            self._waiting = [of for of in self._waiting if of.output.step.decides_all]
        else:
            self._record_waiting()
        self._shown.stage(stage, num_outputs=num_outputs, num_bytes=num_bytes)

    def more(self, *, num_outputs: int, num_bytes: int) -> None:
        """Pass it on."""
        self._shown.more(num_outputs=num_outputs, num_bytes=num_bytes)

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Pass it on."""
        self._shown.advance(num_documents, num_bytes)

    def made(self, made: StageResult) -> None:
        """Report the output, after what it is made from."""
        self._shown.made(made)
        is_limited = made.graph.limited is not None
        if is_limited and (made.output.step.decides_all or made.output.step.has_engine):
            self._waiting.append(made)
        else:
            self._record(made)

    def _record_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._sync(to_build=[of.output.name for of in waiting if of.output.is_of_file])
        for made in waiting:
            self._record(made)

    def _record(self, made: StageResult) -> None:
        output = made.output
        if self._graph is None:
            self._graph = made.graph
            if not all(source.is_local for source in self._graph.sources.values()):
                # What the build has fetched is known only now.
                self._sync()
        asset = (output.stage, output.variant)
        self._made.setdefault(asset, []).append(output)
        history = self._histories.setdefault(
            asset, AssetHistory(self._context.instance, self._dataset, *asset)
        )
        partition = output.key
        if history.unrecorded({partition: data_version(output)}):
            self._recorded.setdefault(asset, []).append(output)
            history.record({partition: report(made)}, self._context.log_event)
        elif output.step.has_latest and SCHEDULE_TAG in self._context.run.tags:
            # By its time Dagster knows that the night went well, though nothing has changed.
            history.record({partition: report(made)}, self._context.log_event)

    def failed(self, failed: StageFailure) -> None:
        """Log the error at once; the run goes on."""
        self._shown.failed(failed)
        self._context.log.error(str(failed.explained))

    def may_export(self) -> bool:
        """Return whether checks of all that exports are made from find nothing wrong."""
        failed = self.check()
        if is_wrong := any(of.severity is dg.AssetCheckSeverity.ERROR for of in failed):
            self._context.log.error("No export is made, for checks have failed.")
        return not is_wrong

    def check(self) -> list[dg.AssetCheckResult]:
        """Check what is there and was not checked yet; return all checks that fail.

        Dagster is told of what was computed, and of the checks of what is new to it.
        """
        self._record_waiting()
        todo = [asset for asset in self._made if asset not in self._failed]
        if self._graph is None or not todo:
            return [of for failed in self._failed.values() for of in failed]
        checker = Checker(self._graph, recheck=self._recheck)
        for asset in todo:
            key = asset_key(self._dataset, *asset)
            self._failed[asset] = []
            for outcome in checker.outcomes(asset[0], self._made[asset]):
                result = check_result(key, outcome)
                if outcome.is_news or asset in self._recorded:
                    log_check(self._context.log_event, result)
                self._failed[asset] += [] if result.passed else [result]
        return [of for failed in self._failed.values() for of in failed]

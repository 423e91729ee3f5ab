"""Decisions of the sensor: what a look at the raw files of a dataset leads to, and the digests by
which it knows what has not moved since the last.

A dataset with `automation: true` gets one run of its build job when something is to be built. Of
the others only Dagster's list of files is brought up to date.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import dagster as dg

from tokflow.components import assets, file_partitions, report_asset, reports
from tokflow.components.history import AssetHistory, definition_digest, digest_of
from tokflow.components.instance import NOT_ENDED, end_lost_runs
from tokflow.errors import TokflowError, first_five, message_of
from tokflow.formatting import counted
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.fields import is_due
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.plan import Plan, make_plan
from tokflow.raw.hashes import stamp_of
from tokflow.stage import RAW
from tokflow.tokenizers.stage import tokenizer_source

STATE_TAG = ".dagster/tokflow_state"
"""Tag of a scan: the digest of the state that asked for it. Pages hide tags with this prefix."""

INPUTS_TAG = ".dagster/tokflow_inputs"
"""Tag of a build: the digest of the inputs that it saw."""

CALM_SECONDS = 10.0
"""A file that changed more recently may still be being written."""

MAX_KILLED = 3
"""Builds in a row whose process was killed, after which no other is asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of a dataset from one look to the next, in the sensor's cursor."""

    looked: float = 0.0
    """Time of the last look, in seconds since 1970."""
    written: str = ""
    """Digest of the files that were being written."""
    settled: str = ""
    """Digest of the state in which nothing was to be done."""
    because: str = ""
    """Why nothing was to be done."""
    run: str = ""
    """The last run of the build job that has ended."""
    asked: str = ""
    """Digest of what was to be built, and of the inputs, when a build was asked for; empty once
    all is there."""
    left: str = ""
    """Such a digest of what the run left to be built; another like it would, too."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Pending work of a dataset, and its new memory."""

    memory: Memory
    said: str
    request: dg.RunRequest | None = None


def decide(
    instance: dg.DagsterInstance, dataset: Dataset, memory: Memory, *, now: float
) -> Decision:
    """Look at the raw files, if it is time, and return what is to be done.

    The first look comes at a time of `scan`, too. One that fails, or waits for something, is
    repeated at the next tick.
    """
    memory = replace(memory, looked=memory.looked or now)
    if not is_due(dataset.scan, dataset.timezone, since=memory.looked, now=now):
        return Decision(memory, f"looks again when it is time: {dataset.scan}")
    if dataset.automation:
        end_lost_runs(instance)
        both = (dataset, *dataset.sources)
        keys = {key for of in both for key in assets.asset_keys(of).values()}
        jobs = {assets.build_job_name(of) for of in both}
        for run in instance.get_runs(dg.RunsFilter(statuses=NOT_ENDED)):
            if run.job_name in jobs or keys & (run.asset_selection or set()):  # of some of it, too
                said = f"waits for run {run.run_id[:8]} of {run.job_name}"
                return Decision(memory, f"{said}; cancel it if its machine is gone")
    try:
        changes = file_partitions.look_at_sources(instance, dataset)
        stamped = {key: max(of.mtime_ns, of.ctime_ns) for key, of in changes.stamps.items()}
        # By a clock that differs they will have changed.
        written = tuple(key for key, ns in stamped.items() if now - ns / 1e9 < CALM_SECONDS)
        stamps = digest_of([(key, changes.stamps[key]) for key in written]) if written else ""
        if stamps != memory.written and written:
            said = f"waits for {first_five(written)}, which may still be being written"
            return Decision(replace(memory, written=stamps), said)
        decide_now = _build if dataset.automation else _sync
        return decide_now(instance, changes, replace(memory, written=stamps), now)
    except (TokflowError, OSError) as error:
        return Decision(memory, message_of(error, where=dataset.name))


def _settled(memory: Memory, state: str, because: str, now: float) -> Decision:
    """Return the decision to do nothing before the state is another."""
    memory = replace(memory, settled=state, because=because, looked=now)
    return Decision(memory, because)


def _sync(
    instance: dg.DagsterInstance, changes: file_partitions.FileChanges, memory: Memory, now: float
) -> Decision:
    """Bring Dagster's list up to date, by a run of the scan job if it takes long."""
    dataset = changes.graph.dataset
    state = state_digest(instance, changes)
    if state == memory.settled:
        return Decision(replace(memory, looked=now), "raw files: no change")
    if changes.is_quick:
        said = str(file_partitions.sync_files(instance, dataset, changes, with_status=True))
        return _settled(memory, state, said, now)
    run = _latest_run(instance, assets.scan_job_name(dataset))
    if run is not None and not run.is_finished:
        return Decision(memory, f"waits for run {run.run_id[:8]}, which scans the files")
    if run is not None and run.is_success and run.tags.get(STATE_TAG) == state:
        return _settled(memory, state, f"run {run.run_id[:8]} has scanned the files", now)
    request = dg.RunRequest(job_name=assets.scan_job_name(dataset), tags={STATE_TAG: state})
    return Decision(memory, "the scan job looks at the files", request)


def _build(
    instance: dg.DagsterInstance, changes: file_partitions.FileChanges, memory: Memory, now: float
) -> Decision:
    """Ask for a build if something is to be built that no run like it has failed to build."""
    dataset = changes.graph.dataset
    run = _latest_run(instance, assets.build_job_name(dataset))
    # A run without an origin, of a process that somebody began, Dagster never repeats.
    if run and run.remote_job_origin and run.is_complete_and_waiting_to_retry:
        return Decision(memory, f"waits for Dagster, which repeats run {run.run_id[:8]}")
    state = state_digest(instance, changes)
    if state == memory.settled and memory.run == (run.run_id if run else ""):
        return Decision(replace(memory, looked=now), memory.because)
    outputs, todo = _todo(instance, changes, state)
    if not outputs:
        memory = replace(memory, asked="", left="", run=run.run_id if run else "")
        return _settled(memory, state, todo, now)
    inputs = inputs_digest(changes)
    with_inputs = digest_of(outputs, inputs)
    if run is not None and run.run_id != memory.run:
        memory = replace(memory, run=run.run_id)
        if INPUTS_TAG in run.tags:  # not a build of some of the files
            leaves = _leaves(instance, run, inputs, was_asked=with_inputs == memory.asked)
            memory = replace(memory, left=with_inputs if leaves else "")
    if run is not None and with_inputs == memory.left:
        left = f"run {run.run_id[:8]} ({run.status.value}) left {todo}"
        return _settled(memory, state, f"{left}; another follows when something changes", now)
    request = dg.RunRequest(job_name=assets.build_job_name(dataset), tags={INPUTS_TAG: inputs})
    return Decision(replace(memory, asked=with_inputs, looked=now), f"builds {todo}", request)


def _latest_run(instance: dg.DagsterInstance, job: str) -> dg.DagsterRun | None:
    return next(iter(instance.get_runs(dg.RunsFilter(job_name=job), limit=1)), None)


def _todo(
    instance: dg.DagsterInstance, changes: file_partitions.FileChanges, state: str
) -> tuple[str, str]:
    """Return a digest of what is to be built, or reported to Dagster, empty if there is nothing;
    and its description."""
    if not changes.is_quickly_read:  # a plan would read it, and a tick has a minute
        return state, f"{counted(changes.num_unread, 'file')} not read yet"
    plan = make_plan(changes.graph.dataset, graph=changes.graph)
    if plan.missing:
        outputs = digest_of([(of.stage, of.name, of.fingerprint) for of in plan.missing])
        return outputs, counted(len(plan.missing), "output")
    if plan.bad:
        return "", f"nothing to build: {plan.bad[0].explained}"
    if files := (*changes.added, *changes.removed):
        return digest_of(files), f"the list of files without {first_five(files)}"
    if lacking := [stage for stage, is_there in _known(instance, plan) if not is_there]:
        return digest_of(lacking), f"the history of {', '.join(lacking)}"
    return "", "up to date"


def _known(instance: dg.DagsterInstance, plan: Plan) -> Iterator[tuple[str, bool]]:
    """Yield each asset, and whether Dagster has what is in the store of it."""
    graph, dataset = plan.graph, plan.graph.dataset
    versions: dict[tuple[str, str], dict[str, str]] = {}
    if not graph.of_sources:  # which have raw files of their own
        files = file_partitions.known_files(graph)
        raw = {key: of.sha256 for key, of in file_partitions.known_partitions(graph, files).items()}
        versions = {(RAW, ""): raw, (assets.FILES, ""): {"": file_partitions.files_version(files)}}
    for of in plan.own:
        asset = (of.stage, of.output.variant)
        partition = of.output.key
        versions.setdefault(asset, {})[partition] = reports.data_version(of.output)
    for (stage, name), of_asset in versions.items():
        is_named = name and not assets.is_partitioned(dataset, stage)
        said = name if is_named else "/".join(filter(None, (stage, name)))
        yield said, not AssetHistory(instance, dataset, stage, name).lacks(of_asset)
    yield assets.REPORT, not report_asset.is_report_behind(instance, dataset)


def _leaves(
    instance: dg.DagsterInstance, run: dg.DagsterRun, inputs: str, *, was_asked: bool
) -> bool:
    """Return whether a run that has ended leaves what is to be built now, and another would.

    Not if a file, the config or the code has changed since it began, nor if its process was
    killed: it goes on from there. One that somebody canceled is not begun again. `was_asked`: a
    build of just this was asked for; a run that saw other inputs than the sensor, which has not
    loaded a YAML since it changed, would see them again.
    """
    if run.tags.get(INPUTS_TAG) != inputs and not was_asked:
        return False
    if run.is_success:
        return was_asked
    if _was_killed(instance, run):
        recent = instance.get_runs(dg.RunsFilter(job_name=run.job_name), limit=MAX_KILLED)
        return len(recent) == MAX_KILLED and all(_was_killed(instance, of) for of in recent)
    return True


def _was_killed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run failed although none of its steps did."""
    failed_steps = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return run.status is dg.DagsterRunStatus.FAILURE and not failed_steps


def inputs_digest(changes: file_partitions.FileChanges) -> str:
    """Return a digest of what decides the outputs of a dataset: files, config and code.

    Remote files count by their names alone or, where versions are listed, as on the hub and in
    object stores, by their versions.

    Raises: TokflowError where the tokenizer's own files cannot be found.
    """
    graph = changes.graph
    tokenizer: list[Any] = []
    if graph.dataset.tokenizer.kind != "trained":
        source = tokenizer_source(graph.output("tokenizer"))
        tokenizer = [stamp_of(path) for path in source.local_files()] if source.is_local else []
    of_hub = [(key, of.hub.content_id) for key, of in graph.sources.items() if of.hub is not None]
    each = [(of, of.dataset) for of in (graph, *graph.of_sources.values())]
    beside = [
        path
        for of, dataset in each
        for step in of.stages
        for variant in step.variants(dataset)
        for path in step.files_beside(dataset, variant)
    ]
    listed = [(key, of.version) for key, of in graph.sources.items() if of.version is not None]
    return digest_of(
        sorted(graph.sources),
        *of_hub,
        *listed,
        sorted(changes.stamps.items()),
        tokenizer,
        [(str(path), stamp_of(path)) for path in beside],
        definition_digest(graph.dataset),
    )


def state_digest(instance: dg.DagsterInstance, changes: file_partitions.FileChanges) -> str:
    """Return a digest of the inputs, of what Dagster has and, if outputs are built by themselves,
    of what is in the store."""
    dataset = changes.graph.dataset
    records = instance.get_asset_records(list(assets.asset_keys(dataset).values()))
    latest = [record.asset_entry.last_materialization_record for record in records]
    return digest_of(
        inputs_digest(changes),
        changes.added,
        changes.removed,
        sorted(record.storage_id for record in latest if record),
        sorted(_stored(changes.graph)) if dataset.automation else (),
    )


def _stored(graph: BuildGraph) -> Iterator[tuple[str, int]]:
    """Yield what the store watches of each output, with the time of its last change."""
    for source in graph.of_sources.values():
        yield from _stored(source)
    store, folder = graph.dataset.store, graph.dataset.folder
    for step in graph.stages:
        keys = graph.partitions if step.is_of_file else [""]
        variants = [""] if step.is_of_file else step.variants(graph.dataset)
        places = {step.place(key, variant) for key in keys for variant in variants}
        for place in sorted(places):
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(folder / place) as each,
            ):
                finished = [of.path for of in each if of.is_dir() and not of.name.startswith(".")]
                for path in chain(*(store.watched(of, is_deep=step.has_latest) for of in finished)):
                    changed = 0
                    with suppress(FileNotFoundError, NotADirectoryError):
                        changed = os.stat(path).st_mtime_ns  # noqa: PTH116 (of a text)
                    yield path, changed

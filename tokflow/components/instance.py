"""Dagster's instance of a project: its history, runs that were lost, and old runs.

Relative folders of Dagster's own start at the working folder, so that with DAGSTER_HOME set each
working folder would get a history of its own; and without it the state is in a temporary folder.
Dagster keeps all runs unless somebody removes them.
"""

import functools
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_type_hints

import dagster as dg

from tokflow.pipeline.project import project_root, state_home
from tokflow.store.atomic import boot, is_alive, machine
from tokflow.store.config import expanded

PROCESS_TAG = ".dagster/tokflow_process"
"""Hidden tag of a build: its run and its process. Dagster's daemon watches no processes except
those of Docker and Kubernetes."""

NOT_ENDED = [
    status
    for status in dg.DagsterRunStatus
    if status.value not in ("SUCCESS", "FAILURE", "CANCELED")
]
"""Statuses of a run that is queued or under way."""

ENDED = [status for status in dg.DagsterRunStatus if status not in NOT_ENDED]

LAUNCHED_TAG = ".dagster/grpc_info"
"""Tag of a launched run: the code server that it runs in."""

AT_ONCE = 1_000
"""Runs or events asked for by one query."""


class ProjectInstance(dg.DagsterInstance):
    """History, files and logs of runs in `.dagster` beside dagster.yaml, unless that says where.

    Dagster reads dagster.yaml from DAGSTER_HOME or, if that is not set, from the current folder.
    """

    @classmethod
    def config_schema(cls) -> Mapping[str, Any]:
        """Return the keys of dagster.yaml that are for this class alone: none."""
        return {}

    @classmethod
    def config_defaults(cls, base_dir: str) -> Mapping[str, Any]:
        """Return Dagster's own defaults, in that folder in place of `base_dir`."""
        home = expanded(os.environ.get("DAGSTER_HOME") or Path.cwd())
        # Dagster exports this class nowhere, but takes it in a method that is public.
        instance_ref = get_type_hints(dg.DagsterInstance.from_ref)["instance_ref"]
        defaults: Mapping[str, Any] = instance_ref.config_defaults(os.fspath(home / ".dagster"))
        return defaults


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Yield the instance that `dagster dev` uses when it is started in the project root.

    That is the one in DAGSTER_HOME if it is set, else the one that the project's dagster.yaml
    describes; its relative folders start at the project root, which is the current folder
    meanwhile. Where no dagster.yaml says where the state is kept, it is kept in .dagster.
    """
    if os.environ.get("DAGSTER_HOME"):
        with dg.DagsterInstance.get() as instance:
            yield instance
        return
    root = project_root()
    home = state_home(root)
    home.mkdir(exist_ok=True)
    with chdir(root), dg.DagsterInstance.from_config(os.fspath(home)) as instance:
        yield instance


def process_tags(run_id: str) -> dict[str, str]:
    """Return the tag that says that this process does a run; on a copy of the run it is void."""
    return {PROCESS_TAG: f"{run_id} {socket.gethostname()} {boot()} {machine()} {os.getpid()}"}


def end_lost_runs(instance: dg.DagsterInstance, hosts: Collection[str] = ()) -> None:
    """End runs that say they go on though nothing does them any more: their process, of this host,
    has been killed, or they are of one of `hosts`, none of whose processes is left, as of a
    container that is starting.

    They end as failed ones, which Dagster's daemon starts again where they were launched, except
    those that somebody wanted to cancel.
    """
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_ENDED)):
        why = ""
        match run.tags.get(PROCESS_TAG, "").split():
            case [run.run_id, host, booted, where, number]:
                is_gone = booted != boot() or (where == machine() and not is_alive(int(number)))
                if is_gone and host == socket.gethostname():
                    why = "The process of this run was killed."
            case _:
                host = ""
        if {host, json.loads(run.tags.get(LAUNCHED_TAG, "{}")).get("host")} & {*hosts}:
            why = "The container of this run has ended."
        is_canceled = run.status is dg.DagsterRunStatus.CANCELING
        end = instance.report_run_canceled if is_canceled else instance.report_run_failed
        if why:
            end(run, why)


@dataclass(frozen=True, slots=True)
class OldRuns:
    """Runs that ended before some time, by their ids, newest first."""

    removable: tuple[str, ...]
    needed: tuple[str, ...]
    """Runs with the latest event of an asset or a partition, by which Dagster knows that it is
    built, and in which version, or that it has failed."""


def find_old_runs(instance: dg.DagsterInstance, *, before: datetime) -> OldRuns:
    """Return the runs that have ended and were last updated before that time.

    Runs that go on, or say so, are not among them, whatever their age.
    """
    latest, old, cursor = set(_runs_of_latest_events(instance)), list[str](), None
    filters = dg.RunsFilter(statuses=ENDED, updated_before=before)
    while runs := instance.get_runs(filters, cursor=cursor, limit=AT_ONCE):
        cursor = runs[-1].run_id
        old += [run.run_id for run in runs]
    return OldRuns(
        removable=tuple(run for run in old if run not in latest),
        needed=tuple(run for run in old if run in latest),
    )


def remove_runs(instance: dg.DagsterInstance, runs: Sequence[str]) -> None:
    """Remove runs, their events, and what they printed. Nothing in a store is touched."""
    for run in runs:
        instance.compute_log_manager.delete_logs(prefix=[run])
        instance.delete_run(run)


def _runs_of_latest_events(instance: dg.DagsterInstance) -> Iterator[str]:
    """Yield the run of the latest materialization, and of the latest observation, of each asset and
    of each of its partitions, and that of the last attempt where it came to nothing."""
    storage = instance.event_log_storage
    events = (
        (dg.DagsterEventType.ASSET_MATERIALIZATION, instance.fetch_materializations),
        (dg.DagsterEventType.ASSET_OBSERVATION, instance.fetch_observations),
    )
    planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    for key in instance.all_asset_keys():
        for record in instance.get_asset_records([key]):
            last = instance.get_run_by_id(str(record.asset_entry.last_run_id))
            if last and not last.is_success:  # else it is named below, or found all as it was
                yield last.run_id
        made = storage.get_latest_storage_id_by_partition(key, events[0][0])
        for partition, own in storage.get_latest_storage_id_by_partition(key, planned).items():
            if own > made.get(partition, 0):
                info = storage.get_latest_planned_materialization_info(key, partition)
                yield from [info.run_id] if info else []
        for kind, fetch in events:
            yield from (record.run_id for record in fetch(key, limit=1).records)
            ids = list(storage.get_latest_storage_id_by_partition(key, kind).values())
            for start in range(0, len(ids), AT_ONCE):
                asked = dg.AssetRecordsFilter(key, storage_ids=ids[start : start + AT_ONCE])
                yield from (record.run_id for record in fetch(asked, limit=AT_ONCE).records)


# Dagster exports the class of what such an event holds nowhere.
_Made = get_type_hints(
    dg.DagsterEvent.step_materialization_data.fget,  # type: ignore[attr-defined]
    vars(sys.modules[dg.DagsterEvent.__module__]),
)["return"]


def events_of(context: dg.AssetExecutionContext) -> Callable[[Any], None]:
    """Return a function that enters an event as `context.log_event` does, that of a partition
    500 bytes shorter: it names run and step once, and is none of the step's results."""

    def enter(event: Any) -> None:
        if not isinstance(event, dg.AssetMaterialization) or event.partition is None:
            context.log_event(event)
            return
        entered = dg.DagsterEvent(
            dg.DagsterEventType.ASSET_MATERIALIZATION.value,
            context.run.job_name,
            step_key=str(context.op_execution_context.op_handle),
            event_specific_data=_Made(event),
            message=event.description,
        )
        context.instance.report_dagster_event(entered, context.run.run_id, logging.DEBUG)

    return enter


@contextmanager
def kept_open(instance: dg.DagsterInstance) -> Iterator[None]:
    """Keep the SQLite files of Dagster's events open for this thread, where it has any.

    Dagster 1.13 opens a file anew, three times an event, and compiles its statements again: 12 ms
    of CPU, and four syncs of the disk. Kept open it takes 4 ms. Each event is committed by itself
    and outlives this process; without power the last may be lost, which the next build enters.
    """
    storage: Any = instance.event_log_storage
    if not storage.is_run_sharded:
        yield
        return
    with ExitStack() as stack:
        storage.run_connection = _kept(storage.run_connection, stack)
        storage.index_connection = _kept(storage.index_connection, stack)
        storage.has_table = functools.cache(storage.has_table)
        try:
            yield
        finally:
            del storage.run_connection, storage.index_connection, storage.has_table


def _kept(connect: Callable[..., Any], stack: ExitStack) -> Callable[..., Any]:
    """Return a function that begins a transaction as `connect` does, in a connection that stays
    open as long as `stack`; another thread gets one of its own."""
    owner = threading.get_ident()

    @functools.cache
    def opened(*shard: str) -> Any:
        with connect(*shard) as connection:  # which makes the file if it is not there
            engine = connection.engine
        kept = stack.enter_context(engine.connect())
        kept.exec_driver_sql("PRAGMA synchronous = NORMAL")
        kept.rollback()  # which ends the transaction that it began
        return kept

    @contextmanager
    def transaction(*shard: str, **named: str) -> Iterator[Any]:
        if threading.get_ident() != owner:
            with connect(*shard, **named) as connection:
                yield connection
        else:
            connection = opened(*shard, *named.values())
            with connection.begin():
                yield connection

    return transaction

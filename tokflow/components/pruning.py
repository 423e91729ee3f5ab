"""Old runs of Dagster's history, which keeps all of them unless somebody removes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import dagster as dg

from tokflow.components.instance import NOT_ENDED

AT_ONCE = 1_000
"""Runs or events asked for by one query."""

ENDED = [status for status in dg.DagsterRunStatus if status not in NOT_ENDED]


@dataclass(frozen=True, slots=True)
class OldRuns:
    """Runs that ended before some time, by their ids, newest first."""

    removable: tuple[str, ...]
    needed: tuple[str, ...]
    """Those with the latest event of an asset or a partition, by which Dagster knows that it is
    built, and in which version, or that it has failed."""


def find_old_runs(instance: dg.DagsterInstance, *, before: datetime) -> OldRuns:
    """Return the runs that have ended and were last updated before that time.

    Runs that go on, or say so, are not among them, whatever their age.
    """
    latest = set(_runs_of_latest_events(instance))
    old = list(_ended_runs(instance, before))
    return OldRuns(
        removable=tuple(run for run in old if run not in latest),
        needed=tuple(run for run in old if run in latest),
    )


def remove_runs(instance: dg.DagsterInstance, runs: Sequence[str]) -> None:
    """Remove runs, their events, and what they printed. Nothing in a store is touched."""
    for run in runs:
        instance.compute_log_manager.delete_logs(prefix=[run])
        instance.delete_run(run)


def _ended_runs(instance: dg.DagsterInstance, before: datetime) -> Iterator[str]:
    cursor = None
    filters = dg.RunsFilter(statuses=ENDED, updated_before=before)
    while runs := instance.get_runs(filters, cursor=cursor, limit=AT_ONCE):
        cursor = runs[-1].run_id
        yield from (run.run_id for run in runs)


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
        yield from (str(of.asset_entry.last_run_id) for of in instance.get_asset_records([key]))
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

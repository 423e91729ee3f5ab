"""Partitions of the raw files: Dagster's list, brought up to date with the files that are there."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from tokflow.components.checks import check_files, log_check
from tokflow.components.dagster_names import partition_set
from tokflow.components.file_reports import files_version, report_files, report_raw
from tokflow.components.history import AssetHistory, Log
from tokflow.components.reports import Report
from tokflow.errors import RawFileError, first_five
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.status import file_statuses
from tokflow.raw import RawFile, RawPartition
from tokflow.raw.files import HashCache, stamp_of
from tokflow.split.mixed_split import source_and_key
from tokflow.store.listed_files import Stamp

KEYS_AT_ONCE = 5_000
"""SQLite with a limit of 32,766 variables refuses many more in one call (dagster issue 16260)."""

SHOWN = ("summary", "problems", "status")
"""Metadata of the list of raw files that says when it is to be recorded again."""

QUICK_BYTES = 2_000_000_000
"""To hash takes some 2 s."""

QUICK_EVENTS = 200
"""Changed or removed files: to record takes some 3 s on an idle disk, and 20 s on a busy one. New
ones take 0.2 ms each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncedFiles:
    """Changes of the raw files that Dagster was told, by partition key, sorted."""

    added: tuple[str, ...] = ()
    """New partitions."""
    removed: tuple[str, ...] = ()
    """Partitions whose file is gone; what was built of them stays in the store."""
    changed: tuple[str, ...] = ()
    """Known partitions with another content."""

    def __str__(self) -> str:
        changes = {"added": self.added, "removed": self.removed, "changed": self.changed}
        said = [f"{len(of):,} {what} ({first_five(of)})" for what, of in changes.items() if of]
        return "raw files: " + (", ".join(said) or "no change")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChanges:
    """Partitions that are there, against those that Dagster knows; no file was read for it."""

    graph: BuildGraph
    stamps: Mapping[str, Stamp]
    """Of the raw files on this machine, by key."""
    added: tuple[str, ...]
    removed: tuple[str, ...]
    num_changed: int
    """Known partitions with a file whose checksum is not known."""
    num_unread: int
    """Files whose checksum is not known."""
    num_unread_bytes: int

    @property
    def is_quick(self) -> bool:
        """True if bringing Dagster up to date takes a few seconds at most."""
        return self.is_quickly_read and self.num_changed + len(self.removed) <= QUICK_EVENTS

    @property
    def is_quickly_read(self) -> bool:
        """True if reading what is new takes a few seconds at most."""
        return self.num_unread_bytes <= QUICK_BYTES


def look_at_sources(
    instance: dg.DagsterInstance, dataset: Dataset, graph: BuildGraph | None = None
) -> FileChanges:
    """Return what is there, without reading any content; `graph`: that of a plan.

    Raises: ConfigError, RawFileError where the files cannot be listed.
    """
    graph = graph or BuildGraph(dataset, offline=True)
    registered = set(instance.get_dynamic_partitions(str(partition_set(dataset).name)))
    caches = {of.name: HashCache(of.folder) for of in dataset.sources or (dataset,)}
    local = {key: Path(of.url) for key, of in graph.sources.items() if of.is_local}
    stamps = {key: stamp_of(path) for key, path in local.items() if path.is_file()}
    names = {key: source_and_key(key)[0] if dataset.sources else dataset.name for key in stamps}
    read = {source.key for of in graph.partitions.values() for source in of}
    unread = {
        key: of
        for key, of in stamps.items()
        if key in read and not caches[names[key]].find(local[key], of)
    }
    is_open = graph.limited is not None and graph.limited.is_open
    kept = graph.listed if is_open else graph.partitions  # those that may follow are no less there
    known = [of for key, of in graph.partitions.items() if key in registered]
    return FileChanges(
        graph=graph,
        stamps=stamps,
        added=tuple(key for key in graph.partitions if key not in registered),
        removed=tuple(sorted(registered - set(kept))),
        num_changed=sum(any(source.key in unread for source in of) for of in known),
        num_unread=len(unread),
        num_unread_bytes=sum(stamp.num_bytes for stamp in unread.values()),
    )


def sync_files(
    instance: dg.DagsterInstance,
    dataset: Dataset,
    changes: FileChanges | None = None,
    *,
    log: Log | None = None,
    to_build: Collection[str] = (),
    with_status: bool = False,
) -> SyncedFiles:
    """Register new raw files as partitions, retire those that are gone, record each new content.

    Another content of a file of this machine is recorded as a materialization of `raw`, by default
    without a run, for somebody else has made it; Dagster ignores an observation of an asset that it
    can materialize. The first content makes nothing stale and is recorded when it is built, of
    the partitions `to_build` here: each event takes 5 to 12 ms. A remote file is only listed: what
    its content is shows when `raw` fetches it. The list itself is recorded as a materialization of
    `files`, so that a file which comes or goes makes the exports stale, too; `with_status`: also
    where only the status of a file is another. `changes`: those that a look has found just now.

    Raises: ConfigError, RawFileError where the files cannot be listed; nothing is retired then.
    """
    changes = changes or look_at_sources(instance, dataset)
    if dataset.sources:  # whose raw files are theirs to record
        _update(instance, dataset, changes)
        return SyncedFiles(added=changes.added, removed=changes.removed)
    raw_files = known_files(changes.graph)
    known = AssetHistory(instance, dataset, "raw").versions
    partitions = known_partitions(changes.graph, raw_files)
    build = set(to_build)
    to_record = {key: of for key, of in partitions.items() if key in known or key in build}
    recorded = record_raw(instance, changes.graph, to_record, log)
    _update(instance, dataset, changes)
    record_listing(instance, changes.graph, raw_files, log, with_status=with_status)
    changed = tuple(key for key in recorded if key in known and key not in changes.added)
    return SyncedFiles(added=changes.added, removed=changes.removed, changed=changed)


def _update(instance: dg.DagsterInstance, dataset: Dataset, changes: FileChanges) -> None:
    """Add the partitions that are new, and remove those that are gone."""
    files, new = str(partition_set(dataset).name), changes.added
    for start in range(0, len(new), KEYS_AT_ONCE):
        instance.add_dynamic_partitions(files, new[start : start + KEYS_AT_ONCE])
    for key in changes.removed:
        instance.delete_dynamic_partition(files, key)


def known_files(graph: BuildGraph, keys: Iterable[str] | None = None) -> dict[str, RawFile | None]:
    """Return every listed file, or those of some partitions, hashed if it is of this machine; None
    for one that was never fetched, or cannot be read and fails when it is built."""
    if not graph.files.offline:
        graph = BuildGraph(graph.dataset, offline=True, is_refreshed=True)
    keys = list(graph.partitions if keys is None else keys)
    graph.read_raw_files(keys)
    of_keys = {source.key for key in keys for source in graph.partitions[key]}
    raw_files: dict[str, RawFile | None] = dict.fromkeys(
        key for key in graph.sources if key in of_keys
    )
    for key in raw_files:
        with suppress(RawFileError):
            raw_files[key] = graph.raw_file(key)
    return raw_files


def known_partitions(
    graph: BuildGraph, raw_files: Mapping[str, RawFile | None]
) -> dict[str, RawPartition]:
    """Return the partitions of which every file is known."""
    found = {
        key: tuple(file for of in sources if (file := raw_files.get(of.key)) is not None)
        for key, sources in graph.partitions.items()
    }
    return {
        key: RawPartition(key, files)
        for key, files in found.items()
        if len(files) == len(graph.partitions[key])
    }


def record_raw(
    instance: dg.DagsterInstance,
    graph: BuildGraph,
    partitions: Mapping[str, RawPartition],
    log: Log | None = None,
) -> list[str]:
    """Record the contents of partitions that Dagster does not have; return their keys, sorted."""
    history = AssetHistory(instance, graph.dataset, "raw")
    new = history.unrecorded({key: partitions[key].sha256 for key in sorted(partitions)})
    history.record({key: report_raw(partitions[key], graph.partitions[key]) for key in new}, log)
    return new


def record_listing(
    instance: dg.DagsterInstance,
    graph: BuildGraph,
    raw_files: Mapping[str, RawFile | None],
    log: Log | None = None,
    *,
    with_status: bool = False,
) -> bool:
    """Record the list of raw files with the status of each, unless Dagster has that list and, if
    asked for, shows that status, which the check of the files goes with. The status is no part of
    the data version, so that by it nothing becomes stale."""
    history = AssetHistory(instance, graph.dataset, "files")
    is_new = bool(history.unrecorded({"": files_version(raw_files)}))
    if is_new or with_status:
        statuses = file_statuses(make_plan(graph.dataset, graph=graph))
        report = report_files(raw_files, graph.listing.left_out, statuses)
        shown = history.metadata
        is_new = is_new or any(shown.get(of) != report.metadata.get(of) for of in SHOWN)
        if is_new:
            history.record({"": report}, log)
            check = check_files(history.key, statuses)
            log_check(log or instance.report_runless_asset_event, check)
    return is_new


def report_listing(graph: BuildGraph, raw_files: Mapping[str, RawFile | None]) -> Report:
    """Return the report of the list of raw files, with the status of each. `graph`: an offline
    one."""
    statuses = file_statuses(make_plan(graph.dataset, graph=graph))
    return report_files(raw_files, graph.listing.left_out, statuses)


def record_status(instance: dg.DagsterInstance, dataset: Dataset, log: Log | None = None) -> bool:
    """Record the list of raw files with their status where that is another than Dagster shows, and
    return whether it was. A mixture has no such list."""
    if dataset.mixture is not None:
        return False
    graph = BuildGraph(dataset, offline=True)
    return record_listing(instance, graph, known_files(graph), log, with_status=True)

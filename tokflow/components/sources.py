"""Sources: Dagster's list of raw files, brought up to date with what is there."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.components.names import asset_key, partition_set
from tokflow.components.reports import Report, report_files, report_raw
from tokflow.components.versions import (
    FILES_VERSION,
    RAW_VERSION,
    recorded_version,
    recorded_versions,
    version_tags,
)
from tokflow.errors import RawFileError, first_five
from tokflow.raw import LeftOut, RawFile, RawSource, read_raw_file, read_raw_files
from tokflow.raw.hashes import HashCache, stamp_of

KEYS_AT_ONCE = 5_000
"""SQLite with a limit of 32,766 variables refuses many more in one call (dagster issue 16260)."""

QUICK_BYTES = 2_000_000_000
"""To hash takes some 2 s."""

QUICK_EVENTS = 200
"""To record takes some 3 s on an idle disk, and 20 s on a busy one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Synced:
    """What a look at the raw files changed in Dagster, by partition key, sorted."""

    added: tuple[str, ...] = ()
    """New partitions."""
    removed: tuple[str, ...] = ()
    """Partitions whose file is gone; what was built of them stays in the store."""
    changed: tuple[str, ...] = ()
    """Known partitions with another content."""

    def __str__(self) -> str:
        parts = [
            f"{len(keys):,} {what} ({first_five(keys)})"
            for what, keys in (
                ("added", self.added),
                ("removed", self.removed),
                ("changed", self.changed),
            )
            if keys
        ]
        return "raw files: " + (", ".join(parts) or "no change")


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is there, against what Dagster knows; no content has been read for it."""

    sources: Mapping[str, RawSource]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    known: Mapping[str, RawFile]
    """Files whose checksum is known: from the cache or, of remote ones, from the newest copy."""
    unread: tuple[str, ...]
    """Files of this machine that must be hashed."""
    unread_bytes: int
    num_events: int
    """How many of `known` Dagster does not have with this checksum."""
    left_out: tuple[LeftOut, ...]
    """What the patterns match and is not read."""
    digest: str
    """Another one when the raw files are others."""

    @property
    def is_quick(self) -> bool:
        """Whether `record_sources` takes a few seconds at most."""
        return (
            self.unread_bytes <= QUICK_BYTES
            and self.num_events + len(self.unread) <= QUICK_EVENTS
            and len(self.added) + len(self.removed) <= KEYS_AT_ONCE
        )


def sync_files(instance: dg.DagsterInstance, dataset: Dataset) -> Synced:
    """Register new raw files as partitions, retire those that are gone, record each new content.

    The content of a file of this machine is recorded as a materialization of `raw` without a
    run, for somebody else has made it; Dagster ignores an observation of an asset that it can
    materialize. A remote file is only listed: what its content is shows when `raw` fetches it.
    The list itself is recorded as a materialization of `files`, so that a file which goes away
    makes the exports stale, too.

    Raises: ConfigError, RawFileError where the files cannot be listed; nothing is retired then.
    """
    return record_sources(instance, dataset, look_at_sources(instance, dataset))


def look_at_sources(instance: dg.DagsterInstance, dataset: Dataset) -> Look:
    """Return what is there, without reading any content."""
    listing = BuildGraph(dataset).listing
    sources = listing.sources
    registered = set(instance.get_dynamic_partitions(str(partition_set(dataset).name)))
    recorded = recorded_versions(instance, asset_key(dataset, "raw"))
    known = _known_files(dataset, sources)
    unread = {
        key: stamp_of(Path(source.url))
        for key, source in sources.items()
        if source.is_local and key not in known and Path(source.url).is_file()
    }
    added = tuple(key for key in sources if key not in registered)
    removed = tuple(sorted(registered - set(sources)))
    state = [added, removed, sorted(unread.items()), sorted(raw.sha256 for raw in known.values())]
    return Look(
        sources=sources,
        added=added,
        removed=removed,
        known=known,
        unread=tuple(unread),
        unread_bytes=sum(stamp.num_bytes for stamp in unread.values()),
        left_out=listing.left_out,
        num_events=sum(recorded.get(key) != raw.sha256 for key, raw in known.items()),
        digest=hashlib.sha256(repr(state).encode()).hexdigest(),
    )


def record_sources(instance: dg.DagsterInstance, dataset: Dataset, look: Look) -> Synced:
    """Bring Dagster up to date with `look`, and hash what it left unread."""
    raw_files = {**look.known, **_read(dataset, look)}
    recorded = recorded_versions(instance, asset_key(dataset, "raw"))
    changed = [key for key in sorted(raw_files) if raw_files[key].sha256 != recorded.get(key)]
    reports = {key: report_raw(raw_files[key], look.sources[key]) for key in changed}
    # Recorded before they are registered, or automation might see a partition without its file.
    record_partitions(instance, dataset, "raw", reports, code_version=RAW_VERSION)
    register(instance, dataset, look.added)
    for key in look.removed:
        instance.delete_dynamic_partition(str(partition_set(dataset).name), key)
    listed = {key: raw_files.get(key) for key in look.sources}
    record_files(instance, dataset, listed, left_out=look.left_out)
    return Synced(
        added=look.added,
        removed=look.removed,
        changed=tuple(key for key in changed if key in recorded and key not in look.added),
    )


def register(instance: dg.DagsterInstance, dataset: Dataset, keys: Iterable[str]) -> None:
    """Add partitions; those that are there already stay."""
    keys = list(keys)
    for start in range(0, len(keys), KEYS_AT_ONCE):
        instance.add_dynamic_partitions(
            str(partition_set(dataset).name), keys[start : start + KEYS_AT_ONCE]
        )


def known_files(dataset: Dataset, sources: Mapping[str, RawSource]) -> dict[str, RawFile | None]:
    """Return every listed file, hashed if it is of this machine; None if it was never fetched."""
    known = _known_files(dataset, sources)
    unread = {key: source for key, source in sources.items() if key not in known}
    read = _read_files(dataset, {key: s for key, s in unread.items() if s.is_local})
    return {key: known.get(key) or read.get(key) for key in sources}


def record_partitions(
    instance: dg.DagsterInstance,
    dataset: Dataset,
    stage: str,
    reports: Mapping[str, Report],
    *,
    code_version: str,
    parents: Iterable[dg.AssetKey] = (),
) -> None:
    """Record outputs that were made without a run, one materialization per partition."""
    key = asset_key(dataset, stage)
    shared = version_tags(instance, code_version=code_version, data_version="", parents=parents)
    for partition, report in reports.items():
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                key,
                partition=partition,
                metadata=report.metadata,
                tags={**shared, "dagster/data_version": report.data_version},
            )
        )


def record_one(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    report: Report,
    *,
    code_version: str,
    parents: Iterable[dg.AssetKey],
) -> bool:
    """Record an output without partitions that was made without a run, unless Dagster has it.

    It is recorded again, too, when a parent has been recorded since.
    """
    parents = list(parents)
    records = {
        record.asset_entry.asset_key: record.asset_entry.last_materialization_storage_id or 0
        for record in instance.get_asset_records([key, *parents])
    }
    is_after_parents = records.get(key, 0) >= max(
        (records.get(parent, 0) for parent in parents), default=0
    )
    if is_after_parents and recorded_version(instance, key) == (code_version, report.data_version):
        return False
    tags = version_tags(
        instance, code_version=code_version, data_version=report.data_version, parents=parents
    )
    instance.report_runless_asset_event(
        dg.AssetMaterialization(key, metadata=report.metadata, tags=tags)
    )
    return True


def record_files(
    instance: dg.DagsterInstance,
    dataset: Dataset,
    raw_files: Mapping[str, RawFile | None],
    *,
    left_out: Sequence[LeftOut],
) -> bool:
    """Record the list of raw files, unless Dagster has it."""
    return record_one(
        instance,
        asset_key(dataset, "files"),
        report_files(raw_files, left_out),
        code_version=FILES_VERSION,
        parents=[asset_key(dataset, "raw")],
    )


def _known_files(dataset: Dataset, sources: Mapping[str, RawSource]) -> dict[str, RawFile]:
    """Return the files whose checksum is known without reading them."""
    known: dict[str, RawFile] = {}
    cache = HashCache(dataset.folder)
    for key, source in sources.items():
        path = Path(source.url)
        if source.is_local and path.is_file():
            stamp = stamp_of(path)
            if sha256 := cache.find(path, stamp):
                known[key] = RawFile(
                    key=key, path=path, num_bytes=stamp.num_bytes, sha256=sha256, stamp=stamp
                )
    for key, source in sources.items():
        if not source.is_local:
            try:
                known[key] = read_raw_file(source, store=dataset.folder, offline=True)
            except RawFileError:
                continue  # not fetched yet
    return known


def _read(dataset: Dataset, look: Look) -> dict[str, RawFile]:
    return _read_files(dataset, {key: look.sources[key] for key in look.unread})


def _read_files(dataset: Dataset, sources: Mapping[str, RawSource]) -> dict[str, RawFile]:
    """Return the files that can be hashed; those that cannot fail when they are built."""
    try:
        return read_raw_files(sources.values(), store=dataset.folder)
    except RawFileError:
        pass
    read = {}
    for key, source in sources.items():
        try:
            read[key] = read_raw_file(source, store=dataset.folder)
        except RawFileError:
            continue
    return read

"""Dagster's history: the versions it knows of each output, and outputs entered without a run."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import dagster as dg

from tokflow.components import assets
from tokflow.components.reports import Report
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.stages import for_mixtures
from tokflow.pools.pool import ignore

CODE_VERSION = "dagster/code_version"
DATA_VERSION = "dagster/data_version"
INPUT_VERSION = "dagster/input_data_version"
"""Tags by which Dagster says what is stale."""

Log: TypeAlias = Callable[[dg.AssetMaterialization], object]
"""Enters an event: as one of a run, by `context.log_event`, or as one without a run."""

LOOKED_AT = 100
"""Number of partitions from which on Dagster 1.13 does not ask whether those of a parent, all of
which count, are newer."""


def digest_of(*values: Any) -> str:
    """Return a short text that is another one for other values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def definition_digest(dataset: Dataset) -> str:
    """Return a digest of the YAML and the code of a dataset and, of a mixture, of what it needs of
    its sources."""
    of_sources = [
        (of, [assets.code_version(of, stage.name, name) for name in stage.variants(of)])
        for of in dataset.sources
        for stage in for_mixtures(of.stages)
    ]
    keys = assets.asset_keys(dataset).items()
    own = [(key, assets.code_version(dataset, *asset)) for asset, key in keys]
    return digest_of(dataset, dataset.base, own, of_sources)


@dataclass(frozen=True)  # without slots, since it keeps what it looked up
class AssetHistory:
    """Materializations of one asset: those that Dagster has, and new ones to record.

    Outputs are named by their partition, `""` of an asset without partitions. Versions and parents
    are those of the first look, so parents must have been recorded before it.
    """

    instance: dg.DagsterInstance
    dataset: Dataset
    stage: str
    name: str = ""
    """The name of an export or, for sequences, of their packing."""

    @property
    def key(self) -> dg.AssetKey:
        """The key of the asset."""
        return assets.asset_key(self.dataset, self.stage, self.name)

    def record(
        self,
        reports: Mapping[str, Report],
        log: Log | None = None,
        progress: Callable[[int, int], None] = ignore,
    ) -> None:
        """Enter outputs, each with its own metadata and data version and with the current parents,
        by default as made without a run. `progress` is called with the number of those that are
        entered, and of all."""
        for number, (partition, report) in enumerate(reports.items(), 1):
            event = dg.AssetMaterialization(
                self.key,
                description=report.description or None,
                partition=partition or None,
                metadata=report.metadata,
                tags={**self.tags, DATA_VERSION: report.data_version},
            )
            (log or self.instance.report_runless_asset_event)(event)
            progress(number, len(reports))

    @cached_property
    def versions(self) -> dict[str, str]:
        """The latest data version of each partition."""
        tags = self.instance.event_log_storage.get_latest_tags_by_partition(
            self.key, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION]
        )
        return {partition: found[DATA_VERSION] for partition, found in tags.items()}

    def lacks(self, versions: Mapping[str, str]) -> bool:
        """Return whether Dagster has any of these outputs in another version, as failed, or not at
        all."""
        if assets.is_partitioned(self.dataset, self.stage):
            is_other = any(self.versions.get(key) != of for key, of in versions.items())
            is_failed = not self._failed.isdisjoint(versions)
            return is_other or is_failed or self._is_of_other_inputs
        tags = _tags_of(self._records.get(self.key))
        return self._is_failed or (tags.get(CODE_VERSION), {"": tags.get(DATA_VERSION)}) != (
            assets.code_version(self.dataset, self.stage, self.name),
            versions,
        )

    def unrecorded(self, versions: Mapping[str, str]) -> list[str]:
        """Return which outputs Dagster does not have in these versions.

        Those that it would show as stale are to be recorded again, too: an asset without partitions
        when a parent has been since, and partitions as `_behind` and `_is_of_other_inputs` say; and
        those that it shows as failed.
        """
        if assets.is_partitioned(self.dataset, self.stage):
            behind, failed, is_other = self._behind, self._failed, self._is_of_other_inputs
            return [
                key
                for key, of in versions.items()
                if is_other or key in behind or key in failed or self.versions.get(key) != of
            ]
        return list(versions) if self.is_behind or self.lacks(versions) else []

    @property
    def is_behind(self) -> bool:
        """True if an asset without partitions would be shown as missing, failed or stale, whatever
        its own version: Dagster has none, or one of other code or of other versions of its parents,
        or a later run failed to make it."""
        own = self._records.get(self.key)
        if own is None or self._is_failed:
            return True
        tags = _tags_of(own)
        for key, of in self._records.items():
            if of is None or key == self.key or of.storage_id < own.storage_id:
                continue
            # An unpartitioned parent may be recorded again as it was: with a new status of files.
            known = tags.get(f"{INPUT_VERSION}/{key.to_user_string()}")
            if of.partition_key is not None or _tags_of(of).get(DATA_VERSION) != known:
                return True
        return tags.get(CODE_VERSION) != assets.code_version(self.dataset, self.stage, self.name)

    @property
    def metadata(self) -> Mapping[str, dg.MetadataValue[Any]]:
        """The metadata of the last event of an asset without partitions."""
        record = self._records.get(self.key)
        event = record.asset_materialization if record else None
        return event.metadata if event else {}

    @cached_property
    def _behind(self) -> set[str]:
        """Partitions recorded before the first event of a parent, whose history was wiped since,
        or, of one all of whose partitions count, before its last."""
        ids, newest = self._ids, 0
        for key, mapping in assets.parents(self.dataset, self.stage, self.name).items():
            is_all = isinstance(mapping, dg.AllPartitionMapping) and len(ids) < LOOKED_AT
            found = self.instance.fetch_materializations(key, limit=1, ascending=not is_all)
            newest = max([newest, *(record.storage_id for record in found.records)])
        return {partition for partition, own in ids.items() if own < newest}

    @cached_property
    def _failed(self) -> set[str]:
        """Partitions that a run was to make since they were recorded, and did not."""
        planned = self.instance.event_log_storage.get_latest_storage_id_by_partition(
            self.key, dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        )
        return {key for key, of in planned.items() if of > self._ids.get(key, 0)}

    @cached_property
    def _is_of_other_inputs(self) -> bool:
        """True if partitions were recorded with another version of the code, or of a parent without
        partitions, so that Dagster shows them as stale although no byte differs; the first and the
        last are asked."""
        partitions = assets.partition_set(self.dataset)
        known = set(partitions.get_partition_keys(dynamic_partitions_store=self.instance))
        ids = [own for partition, own in self._ids.items() if partition in known]
        if not ids:
            return False
        asked = dg.AssetRecordsFilter(self.key, storage_ids=[min(ids), max(ids)])
        records = self.instance.fetch_materializations(asked, limit=2).records
        events = [of.asset_materialization for of in records if of.asset_materialization]
        are_whole = {key for key, of in self._records.items() if of and of.partition_key is None}
        whole = {f"{INPUT_VERSION}/{key.to_user_string()}" for key in are_whole}
        expected = {of: self.tags[of] for of in (CODE_VERSION, *(whole & self.tags.keys()))}
        return any(not expected.items() <= (event.tags or {}).items() for event in events)

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        """The storage id of the last event of each partition."""
        return self.instance.event_log_storage.get_latest_storage_id_by_partition(
            self.key, dg.DagsterEventType.ASSET_MATERIALIZATION
        )

    @cached_property
    def tags(self) -> dict[str, str]:
        """The tags, except the data version, that Dagster would give a materialization; they name
        the parents' latest events, as they are when they are first asked for."""
        tags = {
            CODE_VERSION: assets.code_version(self.dataset, self.stage, self.name),
            "dagster/data_version_is_user_provided": "true",
        }
        for key in assets.parents(self.dataset, self.stage, self.name):
            record = self._records.get(key)
            version = _tags_of(record).get(DATA_VERSION, "INITIAL")
            tags[f"{INPUT_VERSION}/{key.to_user_string()}"] = version
            pointer = str(record.storage_id) if record else "NULL"
            tags[f"dagster/input_event_pointer/{key.to_user_string()}"] = pointer
        return tags

    @property
    def _is_failed(self) -> bool:
        """True if a run has failed to make an asset without partitions since it was recorded."""
        record = self._records.get(self.key)
        last = self._entries[self.key].last_run_id if record else None
        if record is None or last is None or record.run_id == last:
            return False
        run = self.instance.get_run_by_id(last)
        return run is not None and run.status is dg.DagsterRunStatus.FAILURE

    @cached_property
    def _records(self) -> Mapping[dg.AssetKey, dg.EventLogRecord | None]:
        """The latest materialization of the asset and of each parent, of those Dagster knows."""
        return {key: entry.last_materialization_record for key, entry in self._entries.items()}

    @cached_property
    def _entries(self) -> Mapping[dg.AssetKey, Any]:
        """Rows of Dagster's table of assets: the asset and each parent, if Dagster knows it."""
        keys = [self.key, *assets.parents(self.dataset, self.stage, self.name)]
        found = self.instance.get_asset_records(keys)
        return {record.asset_entry.asset_key: record.asset_entry for record in found}


def _tags_of(record: dg.EventLogRecord | None) -> Mapping[str, str]:
    event = record.asset_materialization if record else None
    return (event.tags or {}) if event else {}

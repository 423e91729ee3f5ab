"""Versions: what Dagster compares to say that an output is stale, and why."""

from collections.abc import Callable, Iterable

import dagster as dg
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    NULL_EVENT_POINTER,
    extract_data_version_from_entry,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.exports import export_recipe
from tokflow.sequences.segments import sequences_recipe
from tokflow.split.rule import FilePosition
from tokflow.split.spans import split_recipe
from tokflow.store.manifest import Recipe
from tokflow.tokenizers.sources import named_tokenizer_recipe
from tokflow.tokens.shard import tokens_recipe

RAW_VERSION = "1"
"""Raw files are taken as they are."""

FILES_VERSION = "1"
"""Raised when the same raw files would give another list."""


def code_version(dataset: Dataset, stage: str, name: str = "") -> str:
    """Return what the config and the code contribute to the recipes of a stage's outputs.

    By the stage's own rule, without a look at any file. `name`: that of an export.
    """
    recipes: dict[str, Callable[[], Recipe]] = {
        "tokenizer": lambda: named_tokenizer_recipe(dataset.tokenizer, dataset.documents),
        "tokens": lambda: tokens_recipe(None, dataset.documents, dataset.tokenizer, None),
        "split": lambda: split_recipe("", dataset.split, FilePosition(), ""),
        "sequences": lambda: sequences_recipe("", dataset.packing),
        "export": lambda: export_recipe(
            BuildGraph(dataset).export_config(name), dataset.packing, {}
        ),
    }
    return recipes[stage]().code_version


def version_tags(
    instance: dg.DagsterInstance,
    *,
    code_version: str,
    data_version: str,
    parents: Iterable[dg.AssetKey],
) -> dict[str, str]:
    """Return the tags of a materialization that Dagster itself would give it in a run.

    They name the parents' latest events, so those must have been recorded before.
    """
    parents = list(parents)
    records = {
        record.asset_entry.asset_key: record.asset_entry.last_materialization_record
        for record in instance.get_asset_records(parents)
    }
    tags = {
        CODE_VERSION_TAG: code_version,
        DATA_VERSION_TAG: data_version,
        DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
    }
    for parent in parents:
        record = records.get(parent)
        version = extract_data_version_from_entry(record.event_log_entry) if record else None
        tags[get_input_data_version_tag(parent)] = version.value if version else "INITIAL"
        tags[get_input_event_pointer_tag(parent)] = (
            str(record.storage_id) if record else NULL_EVENT_POINTER
        )
    return tags


def recorded_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, str]:
    """Return the latest recorded data version of each partition of an asset."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
    )
    return {partition: found[DATA_VERSION_TAG] for partition, found in tags.items()}


def recorded_version(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[str, str] | None:
    """Return the latest recorded code version and data version of an asset without partitions."""
    event = instance.get_latest_materialization_event(key)
    if event is None or event.asset_materialization is None:
        return None
    tags = event.asset_materialization.tags or {}
    return tags.get(CODE_VERSION_TAG, ""), tags.get(DATA_VERSION_TAG, "")

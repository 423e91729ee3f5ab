"""Versions: what Dagster compares to say that an output is stale, and why."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

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
from tokflow.documents import deciding_fields
from tokflow.exports import ExportConfig, export_recipe
from tokflow.raw import RawFile
from tokflow.sequences.segments import sequences_recipe
from tokflow.split.rule import FilePosition
from tokflow.split.spans import split_recipe
from tokflow.store.manifest import Recipe
from tokflow.store.stamp import Stamp
from tokflow.tokenizers.encoding import resolve_encoding
from tokflow.tokenizers.sources import TOKENIZER_VERSION
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import tokens_recipe

RAW_VERSION = "1"
"""Raw files are taken as they are."""

FILES_VERSION = "1"
"""Raised when the same raw files would give another list."""

_NO_RAW_FILE = RawFile(key="", path=Path(), num_bytes=0, sha256="", stamp=Stamp(0, 0, 0, 0))
_NO_TOKENIZER = Tokenizer(
    folder=Path(),
    fingerprint="",
    kind="bytes",
    vocab_size=0,
    special_tokens={},
    eos_id=0,
    eos_token=None,
    bos_id=0,
    bos_token=None,
)

_ONLY_FOR_TRAINED = ("vocab_size", "special_tokens", "files", "max_characters")
_USED_LATER = ("eos", "bos", "special_tokens_in_text", "engine")
"""Fields that decide what is done with the tokenizer; `engine` decides nothing."""


def tokens_version(dataset: Dataset) -> str:
    """Return the code version of tokens: their fingerprint without parents.

    So do the other stages: what the config and the code contribute, by the stage's own rule.
    """
    encoding = resolve_encoding(dataset.tokenizer, _NO_TOKENIZER)
    return _short(tokens_recipe(_NO_RAW_FILE, dataset.documents, encoding))


def split_version(dataset: Dataset) -> str:
    """Return the code version of the split."""
    return _short(split_recipe("", dataset.split, FilePosition(), ""))


def sequences_version(dataset: Dataset) -> str:
    """Return the code version of sequences."""
    return _short(sequences_recipe("", dataset.packing))


def export_version(dataset: Dataset, config: ExportConfig) -> str:
    """Return the code version of one export."""
    return _short(export_recipe(config, dataset.packing, {}))


def tokenizer_version(dataset: Dataset) -> str:
    """Return the code version of the tokenizer.

    Unlike its fingerprint it is known without reading the files that `name` leads to.
    """
    config = dataclasses.asdict(dataset.tokenizer)
    is_trained = dataset.tokenizer.kind == "trained"
    unused = {*_USED_LATER, *(() if is_trained else _ONLY_FOR_TRAINED)}
    fields = {name: config[name] for name in config if name not in unused}
    if is_trained:
        fields["documents"] = deciding_fields(dataset.documents, {Path(): 0})
    return _short(Recipe(stage="tokenizer", version=TOKENIZER_VERSION, config=fields, parents={}))


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


def _short(recipe: Recipe) -> str:
    """Return enough of a fingerprint to tell configs apart in the web UI."""
    return recipe.fingerprint[:16]

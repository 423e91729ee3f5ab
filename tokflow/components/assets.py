"""Assets: one for each stage of a dataset."""

from collections.abc import Collection
from typing import Any, TypeAlias

import dagster as dg

from tokflow.components.checks import check_specs
from tokflow.components.columns import column_metadata
from tokflow.components.dagster_names import (
    PARTITIONED,
    asset_key,
    asset_keys,
    parents,
    partition_set,
)
from tokflow.components.history import code_version
from tokflow.components.steps import make_body
from tokflow.components.workers import RESOURCE, WORKERS
from tokflow.exports import FORMATS, ExportConfig
from tokflow.pipeline.dagster_fields import dagster_name
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.schedule import longest_pause
from tokflow.sequences.config import PackingConfig, described, one_or_each
from tokflow.shown import redact

KINDS = {"tiktoken": "openai", "huggingface": "huggingface"}


Row: TypeAlias = tuple[str, set[str], Any, str]
"""Stage, kinds, config and description of an asset."""


def make_assets(dataset: Dataset) -> list[dg.AssetsDefinition]:
    """Return the assets of a dataset, parents first."""
    known = asset_keys(dataset)
    rows = (*_rows_of_raw(dataset), *_rows_of_text(dataset))
    assets = [_asset(dataset, row[0], "", *row[1:]) for row in rows if (row[0], "") in known]
    assets += [_sequences(dataset, name, packing) for name, packing in dataset.packings.items()]
    assets += [_export(dataset, config) for config in dataset.exports]
    return assets + ([_report(dataset)] if ("report", "") in known else [])


def _rows_of_raw(dataset: Dataset) -> list[Row]:
    """Return the assets of the raw files."""
    raw = dataset.raw.model_dump(include={"config", "split", "revision"}, exclude_none=True)
    raw["files"] = list(dataset.raw.files)
    return [
        (
            "raw",
            {"file"},
            raw,
            "The raw files as they are, one partition each. They are read where they stand, or "
            "fetched; none is ever changed.",
        ),
        (
            "files",
            {"file"},
            raw,
            "The list of the raw files with the status of each: failed, stale, new or built. "
            "Exports hold what is on this list, so a file that comes or goes makes them stale.",
        ),
    ]


def _rows_of_text(dataset: Dataset) -> list[Row]:
    """Return the assets from the tokenizer to the split."""
    kind = dataset.tokenizer.kind
    return [
        (
            "tokenizer",
            {KINDS.get(kind, "file")},
            dataset.tokenizer,
            f"The tokenizer ({kind}) that makes the tokens. It is saved in the store, so that "
            "later runs use exactly its bytes.",
        ),
        (
            "tokens",
            {"numpy", "parquet"},
            dataset.documents,
            "The token ids of each raw file, documents end to end. A table beside them has a row "
            "for each document: where it begins and how long it is.",
        ),
        (
            "split",
            {"parquet"},
            dataset.mixture or dataset.split,
            f"Which text belongs to {_listed(dataset.split.parts)}. It is a table of spans; no "
            "token is copied.",
        ),
    ]


def _listed(names: Collection[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _sequences(dataset: Dataset, name: str, packing: PackingConfig) -> dg.AssetsDefinition:
    lengths = {part: packing.of_part(part).stored_length for part in dataset.split.parts}
    said = (
        f"Which tokens stand in which sequence of {described(one_or_each(lengths))}, for each part "
        f"of each file. They are packed by {packing.strategy}; no token is copied."
    )
    if name:
        packed = [of for of in dataset.exports if of.layout.is_packed]
        exports = [of.name for of in packed if dataset.packing_name(of) == name]
        said += f" For {', '.join(exports)}, which have a packing of their own."
    return _asset(dataset, "sequences", name, {"parquet"}, packing, said)


def _export(dataset: Dataset, config: ExportConfig) -> dg.AssetsDefinition:
    described = FORMATS[config.format].description.replace("<", r"\<")  # no tag of markdown
    described += ". It is made from all raw files; `latest` in its folder leads to the newest."
    return _asset(dataset, "export", config.name, {config.format}, config, described)


def _report(dataset: Dataset) -> dg.AssetsDefinition:
    said = (
        "Pictures and tables of the dataset on one page: lengths, bytes per token, shares, fill, "
        "rejects and samples. Builds in Dagster draw it last, whenever an export is another."
    )
    return _asset(dataset, "report", "", {"html"}, {}, said)


def _asset(
    dataset: Dataset, stage: str, name: str, kinds: set[str], config: Any, description: str
) -> dg.AssetsDefinition:
    """Return one asset with what all assets of a dataset have."""
    key, of_parents = asset_key(dataset, stage, name), parents(dataset, stage, name)
    fields = config if isinstance(config, dict) else config.model_dump(exclude_defaults=True)
    metadata: dict[str, Any] = (
        {"config": dg.MetadataValue.json(_redacted(fields))} if fields else {}
    )
    metadata |= column_metadata(dataset, stage, name)
    spec = dg.AssetSpec(
        key,
        deps=[dg.AssetDep(of, partition_mapping=mapping) for of, mapping in of_parents.items()],
        partitions_def=partition_set(dataset) if stage in PARTITIONED else None,
        group_name=dagster_name(dataset.name),
        kinds=kinds,
        owners=list(dataset.owners),
        tags=dataset.tags,
        description=description,
        metadata=metadata,
        code_version=code_version(dataset, stage, name),
        freshness_policy=_freshness_of(dataset.schedule) if stage == "export" else None,
    )
    return dg.multi_asset(  # of one, since only such a step can be asked for its checks alone
        name=key.to_python_identifier(),
        specs=[spec],
        check_specs=check_specs(stage, key),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=None if stage in ("raw", "files", "report") else dataset.pool,
        resource_defs={RESOURCE: WORKERS},
    )(make_body(dataset, stage, name))


def _redacted(value: Any) -> Any:
    """Return a config without what is secret in the URLs in it."""
    if isinstance(value, dict):
        return {name: _redacted(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(of) for of in value]
    return redact(value) if isinstance(value, str) else value


def _freshness_of(schedule: str | None) -> dg.FreshnessPolicy | None:
    """Return the policy by which an export is overdue once builds at two of its times have not
    made or confirmed it; the warning comes half a pause earlier."""
    if schedule is None:
        return None
    pause = longest_pause(schedule)
    return dg.FreshnessPolicy.time_window(fail_window=2 * pause, warn_window=1.5 * pause)

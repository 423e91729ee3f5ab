"""Assets: one for each stage of a dataset."""

from typing import Any

import dagster as dg

from tokflow.build.dagster_fields import dagster_name
from tokflow.build.dataset import Dataset
from tokflow.build.schedule import longest_pause
from tokflow.components.checks import check_specs
from tokflow.components.dagster_names import (
    PARTITIONED,
    asset_key,
    asset_keys,
    parents,
    partition_set,
)
from tokflow.components.history import code_version
from tokflow.components.reports import column_schema
from tokflow.components.steps import make_body
from tokflow.components.workers import RESOURCE, WORKERS
from tokflow.exports import FORMATS, ExportConfig
from tokflow.exports.columns import schema_of
from tokflow.raw import redact
from tokflow.sequences.config import PackingConfig, described, one_or_each
from tokflow.tokens.document_table import DOCUMENTS_SCHEMA

KINDS = {"tiktoken": "openai", "huggingface": "huggingface"}

DOCUMENT_COLUMNS = {
    "row": "ordinal in the raw file; rejects leave a gap",
    "char_offset": "code points before it in the file's documents",
    "num_chars": "code points",
    "token_offset": "tokens before it in tokens.bin",
    "num_tokens": "tokens, BOS and EOS included",
    "text_hash": "xxh3-128 of the UTF-8 text",
}

EXPORT_COLUMNS = {
    "input_ids": "token ids",
    "attention_mask": "1 at tokens, 0 at padding",
    "segment_ids": "1, 2, ... in each sequence; 0 is padding",
    "position_ids": "0 at each segment's first token",
    "loss_mask": "1 at loss tokens",
    "labels": "the token where it is a loss token, else -100; not shifted",
    "seq_lengths": "tokens of each segment",
}


def make_assets(dataset: Dataset) -> list[dg.AssetsDefinition]:
    """Return the assets of a dataset, parents first."""
    kind = dataset.tokenizer.kind
    raw = dataset.raw.model_dump(include={"config", "split", "revision"}, exclude_none=True)
    raw["files"] = [redact(file) for file in dataset.raw.files]
    rows: list[tuple[str, set[str], Any, str]] = [
        ("raw", {"file"}, raw, "Each raw file as it is: read where it stands, or fetched."),
        ("files", {"file"}, raw, "The list of raw files with their checksums: what exports hold."),
        (
            "tokenizer",
            {KINDS.get(kind, "file")},
            dataset.tokenizer,
            f"The tokenizer ({kind}), saved so that later runs use exactly its bytes.",
        ),
        (
            "tokens",
            {"numpy", "parquet"},
            dataset.documents,
            "The token ids of each raw file, documents end to end, and a table of them.",
        ),
        (
            "split",
            {"parquet"},
            dataset.mixture or dataset.split,
            f"Which text belongs to {', '.join(dataset.split.parts)}; no token is copied.",
        ),
    ]
    known = asset_keys(dataset)
    assets = [_asset(dataset, row[0], "", *row[1:]) for row in rows if (row[0], "") in known]
    assets += [_sequences(dataset, name, packing) for name, packing in dataset.packings.items()]
    return assets + [_export(dataset, config) for config in dataset.exports]


def _sequences(dataset: Dataset, name: str, packing: PackingConfig) -> dg.AssetsDefinition:
    lengths = {part: packing.of_part(part).stored_length for part in dataset.split.parts}
    said = (
        f"Which tokens stand in which sequence of {described(one_or_each(lengths))}, for each part "
        "of each file."
    )
    if name:
        packed = [of for of in dataset.exports if of.layout.is_packed]
        exports = [of.name for of in packed if dataset.packing_name(of) == name]
        said += f" For {', '.join(exports)}, which have a packing of their own."
    return _asset(dataset, "sequences", name, {"parquet"}, packing, said)


def _export(dataset: Dataset, config: ExportConfig) -> dg.AssetsDefinition:
    described = FORMATS[config.format].description.replace("<", r"\<")  # no tag of markdown
    described += ". Made from all raw files."
    return _asset(dataset, "export", config.name, {config.format}, config, described)


def _asset(
    dataset: Dataset, stage: str, name: str, kinds: set[str], config: Any, description: str
) -> dg.AssetsDefinition:
    """Return one asset with what all assets of a dataset have."""
    key, of_parents = asset_key(dataset, stage, name), parents(dataset, stage, name)
    fields = config if isinstance(config, dict) else config.model_dump()
    metadata: dict[str, Any] = {"config": dg.MetadataValue.json(fields)}
    if stage == "tokens":
        metadata["dagster/column_schema"] = column_schema(DOCUMENTS_SCHEMA, DOCUMENT_COLUMNS)
    elif stage == "export" and config.layout.columns:
        is_of_one = dataset.packing_of(config).is_of_one_document(dataset.split.parts)
        kept = dataset.documents.keep_columns if is_of_one else ()
        columns = schema_of(config.layout.columns, kept)
        metadata["dagster/column_schema"] = column_schema(columns, EXPORT_COLUMNS)
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
        pool=None if stage in ("raw", "files") else dataset.pool,
        resource_defs={RESOURCE: WORKERS},
    )(make_body(dataset, stage, name))


def _freshness_of(schedule: str | None) -> dg.FreshnessPolicy | None:
    """Return the policy by which an export is overdue once builds at two of its times have not
    made or confirmed it; the warning comes half a pause earlier."""
    if schedule is None:
        return None
    pause = longest_pause(schedule)
    return dg.FreshnessPolicy.time_window(fail_window=2 * pause, warn_window=1.5 * pause)

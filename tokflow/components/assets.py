"""Assets: one for each stage of a dataset."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from tokflow.build.dataset import Dataset
from tokflow.components.automation import when_outdated
from tokflow.components.checks import check_specs
from tokflow.components.history import code_version
from tokflow.components.names import FILE_STAGES, asset_key, parents, partition_set
from tokflow.components.reports import column_schema
from tokflow.components.steps import make_body
from tokflow.exports import FORMATS, ExportConfig
from tokflow.exports.columns import schema_of
from tokflow.raw import redact
from tokflow.tokens.document_table import DOCUMENTS_SCHEMA

FETCH_RETRY = dg.RetryPolicy(
    max_retries=2, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""On top of the tries of each download: a server may be away for longer."""

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
    kind, length = dataset.tokenizer.kind, dataset.packing.row_length
    raw = {"files": [redact(file) for file in dataset.raw.files]}
    return [
        _asset(
            dataset,
            "raw",
            kinds={"file"},
            description="Each raw file as it is: read where it stands, or fetched into the store.",
            config=raw,
            retry_policy=FETCH_RETRY,
        ),
        _asset(
            dataset,
            "files",
            kinds={"file"},
            description="The list of raw files with their checksums: what an export must hold.",
            config=raw,
        ),
        _asset(
            dataset,
            "tokenizer",
            kinds={KINDS.get(kind, "file")},
            description=f"The tokenizer ({kind}), saved so that later runs use exactly its bytes.",
            config=dataset.tokenizer.model_dump(),
        ),
        _asset(
            dataset,
            "tokens",
            kinds={"numpy", "parquet"},
            description="The token ids of each raw file, documents end to end, and a table of "
            "them.",
            config=dataset.documents.model_dump(),
            columns=column_schema(DOCUMENTS_SCHEMA, DOCUMENT_COLUMNS),
        ),
        _asset(
            dataset,
            "split",
            kinds={"parquet"},
            description=f"Which text belongs to {', '.join(dataset.split.parts)}; no token is "
            "copied.",
            config=dataset.split.model_dump(),
        ),
        _asset(
            dataset,
            "sequences",
            kinds={"parquet"},
            description=f"Which tokens stand in which sequence of {length:,}, for each part of "
            "each file.",
            config=dataset.packing.model_dump(),
        ),
        *(_export(dataset, config) for config in dataset.exports),
    ]


def _export(dataset: Dataset, config: ExportConfig) -> dg.AssetsDefinition:
    columns = config.layout.columns
    described = FORMATS[config.format].description.replace("<", r"\<")  # no tag of markdown
    return _asset(
        dataset,
        "export",
        config.name,
        kinds={config.format},
        description=f"{described}. Made from all raw files.",
        config=config.model_dump(),
        columns=column_schema(schema_of(columns), EXPORT_COLUMNS) if columns else None,
    )


def _asset(
    dataset: Dataset,
    stage: str,
    name: str = "",
    *,
    kinds: set[str],
    description: str,
    config: Mapping[str, Any],
    columns: dg.TableSchema | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> dg.AssetsDefinition:
    """Return one asset with what all assets of a dataset have."""
    key, of_parents = asset_key(dataset, stage, name), parents(dataset, stage, name)
    own_partition = dg.IdentityPartitionMapping
    metadata: dict[str, Any] = {"config": dg.MetadataValue.json(config)}
    if columns is not None:
        metadata["dagster/column_schema"] = columns
    return dg.asset(
        key=key,
        deps=[dg.AssetDep(of, partition_mapping=mapping) for of, mapping in of_parents.items()],
        partitions_def=partition_set(dataset) if stage in FILE_STAGES else None,
        group_name=dataset.name,
        kinds=kinds,
        owners=list(dataset.owners),
        description=description,
        metadata=metadata,
        code_version=code_version(dataset, stage, name),
        check_specs=check_specs(stage, key),
        automation_condition=when_outdated(
            [of for of, mapping in of_parents.items() if not isinstance(mapping, own_partition)]
        ),
        backfill_policy=dg.BackfillPolicy.single_run(),
        retry_policy=retry_policy,
    )(make_body(dataset, stage, name))

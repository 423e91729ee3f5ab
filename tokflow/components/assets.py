"""Assets: one for each stage of a dataset. Each calls one function of `pipeline`, and reports."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import dagster as dg

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.build.pipeline import (
    make_export,
    make_raw,
    make_sequences,
    make_split,
    make_tokenizer,
    make_tokens,
)
from tokflow.components import versions
from tokflow.components.automation import when_outdated
from tokflow.components.checks import check_results, check_specs
from tokflow.components.names import FILE_STAGES, asset_key, partition_set
from tokflow.components.reports import (
    Report,
    column_schema,
    report_export,
    report_files,
    report_raw,
    report_sequences,
    report_split,
    report_tokenizer,
    report_tokens,
)
from tokflow.components.sources import known_files
from tokflow.components.steps import (
    Results,
    log_progress,
    materialize_one,
    materialize_partitions,
)
from tokflow.exports import FORMATS, ExportConfig
from tokflow.exports.columns import schema_of
from tokflow.raw import redact
from tokflow.tokens.document_table import DOCUMENTS_SCHEMA

Stage = Literal[
    "raw",
    "files",
    "tokenizer",
    "tokens",
    "split",
    "sequences",
    "stream export",
    "sequences export",
]

NUM_GENERATIONS: Mapping[Stage, int] = {
    "raw": 0,
    "files": 1,
    "tokenizer": 1,
    "tokens": 1,
    "split": 2,
    "sequences": 1,
    "stream export": 2,
    "sequences export": 3,
}
"""How far up automation looks for what has to be built first: to the children of `raw`."""

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
    "segment_ids": "1, 2, ... in each row; 0 is padding",
    "position_ids": "0 at each segment's first token",
    "loss_mask": "1 at tokens that are learnt",
    "labels": "the token where it is learnt, else -100; not shifted",
    "seq_lengths": "tokens of each segment",
}


def make_assets(dataset: Dataset) -> list[dg.AssetsDefinition]:
    """Return the assets of a dataset, parents first."""
    return [
        _raw(dataset),
        _files(dataset),
        _tokenizer(dataset),
        _tokens(dataset),
        _split(dataset),
        _sequences(dataset),
        *(_export(dataset, config) for config in dataset.exports),
    ]


def parents(dataset: Dataset, stage: Stage) -> list[dg.AssetDep]:
    """Return what an asset is made from, and whether from all partitions or its own alone."""
    all_files, own = dg.AllPartitionMapping(), dg.IdentityPartitionMapping()
    is_trained = dataset.tokenizer.kind == "trained"
    of_tokens = all_files if dataset.split.scope == "dataset" else own
    mappings: Mapping[Stage, list[tuple[str, dg.PartitionMapping | None]]] = {
        "raw": [],
        "files": [("raw", all_files)],
        "tokenizer": [("raw", all_files)] if is_trained else [],
        "tokens": [("raw", own), ("tokenizer", None)],
        "split": [("tokens", of_tokens)],
        "sequences": [("split", own)],
        "stream export": [("split", all_files), ("files", None)],
        "sequences export": [("sequences", all_files), ("files", None)],
    }
    return [
        dg.AssetDep(asset_key(dataset, parent), partition_mapping=mapping)
        for parent, mapping in mappings[stage]
    ]


def export_stage(config: ExportConfig) -> Stage:
    """Return which of the two kinds of exports one is."""
    return "sequences export" if config.layout.made_of == "sequences" else "stream export"


def _raw(dataset: Dataset) -> dg.AssetsDefinition:
    def raw(context: dg.AssetExecutionContext) -> Results:
        graph = BuildGraph(dataset)
        yield from materialize_partitions(
            context,
            graph,
            lambda key: report_raw(make_raw(graph, key), graph.sources[key]),
        )

    return _asset(
        raw,
        dataset,
        asset_key(dataset, "raw"),
        stage="raw",
        code_version=versions.RAW_VERSION,
        kinds={"file"},
        retry_policy=FETCH_RETRY,
        description="Each raw file as it is: read where it stands, or fetched into the store.",
        config={"files": [redact(file) for file in dataset.raw.files]},
    )


def _files(dataset: Dataset) -> dg.AssetsDefinition:
    def files(context: dg.AssetExecutionContext) -> Results:
        graph = BuildGraph(dataset)
        yield from materialize_one(
            graph,
            lambda: report_files(known_files(dataset, graph.sources), graph.listing.left_out),
        )

    return _asset(
        files,
        dataset,
        asset_key(dataset, "files"),
        stage="files",
        code_version=versions.FILES_VERSION,
        kinds={"file"},
        description="The list of raw files with their checksums: what an export must hold.",
        config={"files": [redact(file) for file in dataset.raw.files]},
    )


def _tokenizer(dataset: Dataset) -> dg.AssetsDefinition:
    kind = dataset.tokenizer.kind

    def tokenizer(context: dg.AssetExecutionContext) -> Results:
        graph = BuildGraph(dataset)
        yield from materialize_one(graph, lambda: report_tokenizer(make_tokenizer(graph)))

    return _asset(
        tokenizer,
        dataset,
        asset_key(dataset, "tokenizer"),
        stage="tokenizer",
        code_version=versions.code_version(dataset, "tokenizer"),
        kinds={KINDS.get(kind, "file")},
        description=f"The tokenizer ({kind}), saved so that later runs use exactly its bytes.",
        config=dataclasses.asdict(dataset.tokenizer),
    )


def _tokens(dataset: Dataset) -> dg.AssetsDefinition:
    key = asset_key(dataset, "tokens")

    def tokens(context: dg.AssetExecutionContext) -> Results:
        graph = BuildGraph(dataset)

        def make(partition: str) -> Report:
            progress = log_progress(context, partition)
            made = make_tokens(graph, partition, progress=progress)
            return report_tokens(made, graph.tokenizer)

        yield from materialize_partitions(
            context, graph, make, lambda keys: check_results("tokens", key, graph, keys)
        )

    return _asset(
        tokens,
        dataset,
        key,
        stage="tokens",
        code_version=versions.code_version(dataset, "tokens"),
        kinds={"numpy", "parquet"},
        description="The token ids of each raw file, documents end to end, and a table of them.",
        config=dataclasses.asdict(dataset.documents),
        columns=column_schema(DOCUMENTS_SCHEMA, DOCUMENT_COLUMNS),
    )


def _split(dataset: Dataset) -> dg.AssetsDefinition:
    key = asset_key(dataset, "split")

    def split(context: dg.AssetExecutionContext) -> Results:
        graph = BuildGraph(dataset)
        yield from materialize_partitions(
            context,
            graph,
            lambda partition: report_split(make_split(graph, partition)),
            lambda keys: check_results("split", key, graph, keys),
        )

    return _asset(
        split,
        dataset,
        key,
        stage="split",
        code_version=versions.code_version(dataset, "split"),
        kinds={"parquet"},
        description=f"Which text belongs to {', '.join(dataset.split.parts)}; no token is copied.",
        config=dataclasses.asdict(dataset.split),
    )


def _sequences(dataset: Dataset) -> dg.AssetsDefinition:
    key = asset_key(dataset, "sequences")
    length = dataset.packing.row_length

    def sequences(context: dg.AssetExecutionContext) -> Results:
        graph = BuildGraph(dataset)
        yield from materialize_partitions(
            context,
            graph,
            lambda partition: report_sequences(make_sequences(graph, partition)),
            lambda keys: check_results("sequences", key, graph, keys),
        )

    return _asset(
        sequences,
        dataset,
        key,
        stage="sequences",
        code_version=versions.code_version(dataset, "sequences"),
        kinds={"parquet"},
        description=f"Which tokens stand in which row of {length:,}, for each part of each file.",
        config=dataclasses.asdict(dataset.packing),
    )


def _export(dataset: Dataset, config: ExportConfig) -> dg.AssetsDefinition:
    key = asset_key(dataset, "exports", config.name)

    def export(context: dg.AssetExecutionContext) -> Results:
        graph = BuildGraph(dataset)
        yield from materialize_one(
            graph,
            lambda: report_export(make_export(graph, config), graph, config),
            lambda: check_results(export_stage(config), key, graph, [config.name]),
        )

    columns = config.layout.columns
    return _asset(
        export,
        dataset,
        key,
        stage=export_stage(config),
        code_version=versions.code_version(dataset, "export", config.name),
        kinds={config.format},
        description=_plain(f"{FORMATS[config.format].description}. Made from all raw files."),
        config=dataclasses.asdict(config),
        columns=column_schema(schema_of(columns), EXPORT_COLUMNS) if columns else None,
    )


def _plain(text: str) -> str:
    """Return `text` as markdown that does not take `<part>` for a tag."""
    return text.replace("<", r"\<")


def _asset(
    body: Callable[[dg.AssetExecutionContext], Results],
    dataset: Dataset,
    key: dg.AssetKey,
    *,
    stage: Stage,
    code_version: str,
    kinds: set[str],
    description: str,
    config: Mapping[str, Any],
    columns: dg.TableSchema | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> dg.AssetsDefinition:
    """Return the asset with this body and what all assets of a dataset have."""
    dependencies = parents(dataset, stage)
    other_runs = [
        dependency.asset_key
        for dependency in dependencies
        if not isinstance(dependency.partition_mapping, dg.IdentityPartitionMapping)
    ]
    metadata: dict[str, Any] = {"config": dg.MetadataValue.json(config)}
    if columns is not None:
        metadata["dagster/column_schema"] = columns
    return dg.asset(
        key=key,
        deps=dependencies,
        partitions_def=partition_set(dataset) if stage in FILE_STAGES else None,
        group_name=dataset.name,
        kinds=kinds,
        owners=list(dataset.owners),
        description=description,
        metadata=metadata,
        code_version=code_version,
        check_specs=check_specs(stage, key),
        automation_condition=when_outdated(other_runs, num_generations=NUM_GENERATIONS[stage]),
        backfill_policy=dg.BackfillPolicy.single_run(),
        retry_policy=retry_policy,
    )(body)

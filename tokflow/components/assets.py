"""Assets: one for each stage of a dataset."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import dagster as dg
import pyarrow as pa

from tokflow.components.checks import check_specs
from tokflow.components.dagster_names import (
    PARTITIONED,
    asset_key,
    asset_keys,
    parents,
    partition_set,
)
from tokflow.components.history import code_version
from tokflow.components.steps import RESOURCE, WORKERS, make_body
from tokflow.documents.file_formats import format_of_name
from tokflow.exports import FORMATS, ExportConfig
from tokflow.exports.columns import schema_of
from tokflow.pipeline.dagster_fields import dagster_name
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.schedule import longest_pause
from tokflow.sequences.config import PackingConfig, described, one_or_each
from tokflow.shown import redact
from tokflow.tokens.writer import DOCUMENTS_SCHEMA

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

OF_TEXT = ("char_offset", "num_chars", "token_offset", "num_tokens", "text_hash")
"""Columns of the table of documents that the text decides."""


def column_metadata(dataset: Dataset, stage: str, name: str = "") -> dict[str, Any]:
    """Return the schema of an asset's columns and their lineage, {} of one that has no columns."""
    columns = _columns(dataset, stage, name)
    if not columns:
        return {}
    lineage = {of: deps for of in columns if (deps := _made_from(dataset, stage, of))}
    return {
        "dagster/column_schema": dg.TableSchema(
            columns=[
                dg.TableColumn(of, type=kind, description=described)
                for of, (kind, described) in columns.items()
            ]
        ),
        **({"dagster/column_lineage": dg.TableColumnLineage(lineage)} if lineage else {}),
    }


def _columns(dataset: Dataset, stage: str, name: str) -> dict[str, tuple[str, str | None]]:
    """Return the type and the description of each column."""
    if stage == "raw":
        return dict(_raw_columns(dataset))
    if stage == "tokens":
        return _described(DOCUMENTS_SCHEMA, DOCUMENT_COLUMNS)
    config = dataset.export_config(name) if stage == "export" else None
    if config is None or not config.layout.columns:
        return {}
    return _described(schema_of(config.layout.columns, _kept(dataset, config)), EXPORT_COLUMNS)


def _described(
    columns: pa.Schema, descriptions: Mapping[str, str]
) -> dict[str, tuple[str, str | None]]:
    kept = "a column of the raw file that is kept, as text"
    return {of.name: (str(of.type), descriptions.get(of.name, kept)) for of in columns}


def _raw_columns(dataset: Dataset) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the columns that are read; a raw file may have more."""
    documents = dataset.documents
    kind, described = "string", "text of documents"
    if documents.messages is not None:
        kind, described = "list", "chats, whose assistant's turns are loss tokens"
    elif documents.transform is not None:
        kind, described = "any", f"what {documents.transform} makes documents of"
    for column in _columns_of_text(dataset):
        yield column, (kind, described)
    for column in documents.keep_columns:
        if column not in documents.columns:
            yield column, ("any", "kept for each document")


def _columns_of_text(dataset: Dataset) -> tuple[str, ...]:
    """Return the columns that documents are made of; none of plain text, as far as names say it."""
    documents = dataset.documents
    names = dataset.raw.files if documents.format == "auto" else ()
    is_txt = documents.format == "txt" or {format_of_name(of) for of in names} == {"txt"}
    return () if is_txt else documents.columns


def _kept(dataset: Dataset, config: ExportConfig) -> tuple[str, ...]:
    is_of_one = dataset.packing_of(config).is_of_one_document(dataset.split.parts)
    return tuple(dataset.documents.keep_columns) if is_of_one else ()


def _made_from(dataset: Dataset, stage: str, column: str) -> list[dg.TableColumnDep]:
    """Return the columns of other assets that decide one: of the raw file, of the documents."""
    if stage == "tokens" and column in OF_TEXT:
        return [
            dg.TableColumnDep(asset_key(dataset, "raw"), of) for of in _columns_of_text(dataset)
        ]
    if stage != "export":
        return []
    sources = dataset.sources or (dataset,)
    if column not in EXPORT_COLUMNS:
        keep = [of for of in sources if column in of.documents.keep_columns]
        return [dg.TableColumnDep(asset_key(of, "raw"), column) for of in keep]
    return [
        dg.TableColumnDep(asset_key(of, "tokens"), name)
        for of in sources
        for name in ("token_offset", "num_tokens")
    ]

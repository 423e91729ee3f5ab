"""Columns of assets, what is in each, and the columns that it is made from."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pyarrow as pa

from tokflow.components.dagster_names import asset_key
from tokflow.documents.file_formats import format_of_name
from tokflow.exports import ExportConfig
from tokflow.exports.columns import schema_of
from tokflow.pipeline.dataset import Dataset
from tokflow.tokens.document_table import DOCUMENTS_SCHEMA

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

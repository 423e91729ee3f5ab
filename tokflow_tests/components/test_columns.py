"""Claims about columns and their lineage."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow.components import make_definitions
from tokflow.components.assets import column_metadata
from tokflow_tests.tiny import declare


def columns_and_lineage(
    folder: Path, *path: str, **fields: Any
) -> tuple[list[str], dict[str, Any]]:
    """Return the columns of an asset, and from where each comes."""
    dataset = declare(folder, **fields)
    specs = {spec.key: spec for spec in make_definitions(dataset).resolve_all_asset_specs()}
    metadata = specs[dg.AssetKey([dataset.name, *path])].metadata
    schema, lineage = (metadata.get(f"dagster/column_{of}") for of in ("schema", "lineage"))
    columns = [of.name for of in schema.columns] if schema else []
    deps = lineage.deps_by_column if lineage else {}
    return columns, {
        column: sorted(f"{of.asset_key.path[-1]}.{of.column_name}" for of in found)
        for column, found in deps.items()
    }


def test_lineage_leads_from_the_raw_column_to_the_columns_of_an_export(tmp_path: Path):
    fields: dict[str, Any] = {
        "documents": {"text": "body", "keep_columns": ["url"]},
        "packing": {"strategy": "one_document", "sequence_length": 8},
        "exports": ["parquet"],
        "report": False,
    }

    raw, none = columns_and_lineage(tmp_path, "raw", **fields)
    _, of_tokens = columns_and_lineage(tmp_path, "tokens", **fields)
    exported, of_export = columns_and_lineage(tmp_path, "exports", "parquet", **fields)

    assert (raw, none) == (["body", "url"], {})
    assert of_tokens["num_tokens"] == ["raw.body"]
    assert "row" not in of_tokens
    assert of_export["input_ids"] == ["tokens.num_tokens", "tokens.token_offset"]
    assert of_export["url"] == ["raw.url"]
    assert set(of_export) == set(exported)


@pytest.mark.parametrize(
    ("documents", "types"),
    [
        (
            {"text": ["title", "body"], "keep_columns": ["url", "body"]},
            {"title": "string", "body": "string", "url": "any"},
        ),
        (
            {"messages": "chat", "tools": "functions", "system": "prompt", "chat_template": "x"},
            {"chat": "list", "functions": "list", "prompt": "string"},
        ),
    ],
)
def test_a_raw_column_has_the_type_of_what_is_read_of_it(
    documents: dict[str, Any], types: dict[str, str], tmp_path: Path
):
    dataset = declare(tmp_path, documents=documents, report=False)

    schema = column_metadata(dataset, "raw")["dagster/column_schema"]

    assert {of.name: of.type for of in schema.columns} == types

"""Names, tags and the pool that a YAML asks for, in everything that Dagster has of a dataset."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow.components import TextDataset, make_definitions
from tokflow.components.assets import column_metadata
from tokflow.pipeline.declared import Declaration
from tokflow_tests.dagster_case import Case, failure
from tokflow_tests.tiny import declare

PREFIX = ["warehouse", "raw-text", "my-data"]


@pytest.fixture
def case(case: Case) -> Case:
    case.attributes |= {
        "name": "my-data",
        "key_prefix": "warehouse/raw-text",
        "tags": {"domain": "code"},
        "pool": "big",
        "owners": ["team:text", "a@b.org"],
    }
    return case


def test_every_asset_and_job_has_what_was_asked_for(case: Case):
    repository = case.defs.get_repository_def()

    for spec in case.defs.resolve_all_asset_specs():
        assert spec.key.path[:3] == PREFIX
        assert all(parent.asset_key.path[:3] == PREFIX for parent in spec.deps)
        assert (spec.tags["domain"], spec.group_name) == ("code", "my_data")
        assert spec.owners == ["team:text", "a@b.org"]
    assert {key.asset_key.path[1] for key in repository.asset_graph.asset_check_keys} == {
        "raw-text"
    }
    for name in ("my_data_build", "my_data_scan"):
        assert case.defs.resolve_job_def(name).tags["domain"] == "code"
    assert {of.name for of in repository.sensor_defs} == {"tokflow_files"}


def test_other_peoples_assets_keep_their_executor_unless_a_yaml_names_one(case: Case):
    theirs = dg.Definitions(executor=dg.multiprocess_executor)

    assert make_definitions(case.dataset).executor is None
    assert dg.Definitions.merge(theirs, case.defs).executor is dg.multiprocess_executor
    case.attributes["executor"] = "in_process"
    assert make_definitions(case.dataset).executor is dg.in_process_executor


TRANSLATOR = """\
import dagster as dg

from tokflow.components import Translator


class Names(Translator):
    def asset_key(self, dataset, stage, name):
        return dg.AssetKey(["lake", f"{dataset.name}_{name or stage}".replace("-", "_")])

    def group(self, dataset, stage, name):
        return "exports" if stage == "export" else "texts"

    def tags(self, dataset, stage, name):
        return {**dataset.tags, "stage": stage}

    def description(self, dataset, stage, name):
        return "ours: " + super().description(dataset, stage, name)


class Alike(Names):
    def asset_key(self, dataset, stage, name):
        return dg.AssetKey([dataset.name, "one"])


class Wrong(Names):
    def group(self, dataset, stage, name):
        return "no group"


def names():
    return Names()
"""


def test_a_translator_gives_other_keys_groups_tags_and_descriptions(case: Case):
    (case.folder / "naming.py").write_text(TRANSLATOR)
    case.attributes["translator"] = "naming:Names"

    result = case.job("my_data_build")

    assert result.success, failure(result)
    assert case.not_fresh() == {}
    specs = {of.key.to_user_string(): of for of in case.defs.resolve_all_asset_specs()}
    parquet = specs["lake/my_data_parquet"]
    assert (parquet.group_name, specs["lake/my_data_tokens"].group_name) == ("exports", "texts")
    assert {"domain": "code", "stage": "export"}.items() <= parquet.tags.items()
    assert str(parquet.description).startswith("ours: Parquet")
    assert {of.asset_key.to_user_string() for of in parquet.deps} == {
        "lake/my_data_sequences",
        "lake/my_data_files",
    }
    assert {of.asset_key.path[0] for of in result.get_asset_check_evaluations()} == {"lake"}


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("naming:Alike", "two assets of one key"),
        ("naming:Wrong", "no group"),
        ("naming:names", "<function names"),
        ("naming:Nmaes", "none of that name; did you mean 'Names'?"),
        ("nothing:Names", "none for 'nothing:Names'"),
    ],
)
def test_a_translator_that_cannot_be_used_is_the_error_of_its_dataset_alone(
    named: str, found: str, case: Case
):
    (case.folder / "naming.py").write_text(TRANSLATOR)
    fields = {**case.attributes, "translator": named}
    declaration = Declaration("my-data", case.folder, 0, case.folder, fields, "test")

    [broken] = TextDataset.declared([declaration]).broken

    assert broken.error.where.startswith("my-data: translator")
    assert found in str(broken.error)


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

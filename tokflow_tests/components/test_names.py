"""Names, tags and the pool that a YAML asks for, in everything that Dagster has of a dataset."""

import dagster as dg
import pytest

from tokflow.components import TextDataset, make_definitions
from tokflow.pipeline.declared import Declaration
from tokflow_tests.dagster_case import Case, failure

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

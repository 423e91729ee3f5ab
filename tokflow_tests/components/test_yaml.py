"""The component as YAML declares it."""

from pathlib import Path
from typing import Any

import dagster as dg
import pydantic
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from tokflow.build.dataset import Dataset
from tokflow.components import TextDataset, state

ATTRIBUTES: dict[str, Any] = {
    "name": "small",
    "raw": {"files": "data/*.txt"},
    "tokenizer": {"kind": "bytes"},
    "exports": ["bin", {"format": "parquet", "sequences_per_file": 10}],
}


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster calls it
@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # its own, of code references
def test_a_defs_yaml_of_any_dagster_project_declares_a_dataset():
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=TextDataset,
            defs_yaml_contents={
                "type": "tokflow.components.TextDataset",
                "attributes": ATTRIBUTES,
            },
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, defs):
            assert isinstance(component, TextDataset)
            assert component.dataset.base == sandbox.project_root
            assert component.dataset.store == sandbox.project_root / "data/store"
            keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
            assert keys == {
                "small/raw",
                "small/files",
                "small/tokenizer",
                "small/tokens",
                "small/split",
                "small/sequences",
                "small/exports/bin",
                "small/exports/parquet",
            }


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster calls it
@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # its own, of code references
def test_the_datasets_of_a_dagster_project_share_a_sensor(monkeypatch: pytest.MonkeyPatch):
    with create_defs_folder_sandbox() as sandbox:
        for name, automation in (("small", False), ("other", True)):
            attributes = {**ATTRIBUTES, "name": name, "automation": automation}
            sandbox.scaffold_component(
                component_cls=TextDataset,
                defs_path=name,
                defs_yaml_contents={
                    "type": "tokflow.components.TextDataset",
                    "attributes": attributes,
                },
            )
        data = sandbox.project_root / "data"
        data.mkdir()
        (data / "a.txt").write_text("one\n")
        monkeypatch.setattr(state, "CALM_SECONDS", 0.0)
        with sandbox.build_all_defs() as defs, dg.DagsterInstance.ephemeral() as instance:
            repository = defs.get_repository_def()

            [sensor] = repository.sensor_defs
            with dg.build_sensor_context(instance, repository_def=repository) as context:
                result = sensor.evaluate_tick(context)

    jobs = {target.job_name for target in sensor.targets}
    assert sensor.name == "tokflow_files"
    assert jobs == {"small_build", "small_scan", "other_build", "other_scan"}
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert [request.job_name for request in result.run_requests or ()] == ["other_build"]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({**ATTRIBUTES, "tokeniser": {}}, "found 'tokeniser'; did you mean 'tokenizer'?"),
        ({**ATTRIBUTES, "packing": {"length": 4}}, "did you mean 'sequence_length'?"),
        ({**ATTRIBUTES, "exports": ["bim"]}, "did you mean 'bin'"),
        ({"name": "small", "raw": {"files": "a"}}, "expected `tokenizer:`, found none"),
    ],
)
def test_what_is_wrong_is_said_as_tokflow_says_it(attributes: dict[str, Any], message: str):
    with pytest.raises(pydantic.ValidationError) as raised:
        TextDataset.get_model_cls().model_validate(attributes)

    assert message in str(raised.value)


def test_every_field_has_the_description_under_it():
    schema = TextDataset.get_model_cls().model_json_schema()

    assert set(schema["properties"]) == set(Dataset.model_fields)
    undescribed = [
        f"{name}.{field}"
        for name, model in {"": schema, **schema["$defs"]}.items()
        for field, properties in model.get("properties", {}).items()
        if not properties.get("description")
    ]
    assert undescribed == []
    tokenizer = schema["$defs"]["TokenizerConfig"]["properties"]
    assert tokenizer["bos"]["description"].startswith("first: the BOS id begins each document")


def test_the_schema_allows_what_a_yaml_holds():
    schema = TextDataset.get_model_cls().model_json_schema()

    files = schema["$defs"]["RawConfig"]["properties"]["files"]["anyOf"]
    assert [choice["type"] for choice in files] == ["string", "array"]
    assert schema["properties"]["exports"]["items"] == {"$ref": "#/$defs/ExportConfig"}
    names, *formats = schema["$defs"]["ExportConfig"]["anyOf"]
    assert {"bin", "parquet", "pickle"} <= set(names["enum"])
    [parquet] = [one for one in formats if one["properties"]["format"]["const"] == "parquet"]
    assert {"format", "name", "sequences_per_group"} <= set(parquet["properties"])
    assert all(field.get("description") for one in formats for field in one["properties"].values())


def test_assets_lead_to_the_file_that_declares_them(tmp_path: Path):
    from tokflow.build.dataset import make_dataset
    from tokflow.components import make_definitions

    dataset = make_dataset(ATTRIBUTES, base=tmp_path, where="test")

    defs = make_definitions(dataset, declared_in={"small": tmp_path / "defs.yaml"})

    for spec in defs.resolve_all_asset_specs():
        references = spec.metadata["dagster/code_references"]
        assert isinstance(references, dg.CodeReferencesMetadataValue)
        assert str(tmp_path / "defs.yaml") in str(references)

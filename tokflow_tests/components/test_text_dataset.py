"""The component as YAML declares it, and the YAML that `dg scaffold defs` writes.

That dg calls it is shown by tokflow_tests/dg.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest

from tokflow.components import TextDataset
from tokflow.components.text_dataset import DatasetScaffolder
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import find_declarations, load_declared
from tokflow.pipeline.project import Project
from tokflow.views.picture import has_report
from tokflow_tests.dagster_case import failure
from tokflow_tests.projects import DEFS, declare_in, make_project
from tokflow_tests.tiny import load_dataset

ATTRIBUTES: dict[str, Any] = {
    "name": "small",
    "raw": {"files": "data/*.txt"},
    "tokenizer": {"kind": "bytes"},
    "exports": ["bin", {"format": "parquet", "shard_size": "1MB"}],
}


pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),  # Dagster calls it
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),  # its own, of code references
]


def load(project: Path) -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=project)


def keys_of(defs: dg.Definitions) -> set[str]:
    return {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}


def dataset_at(project: Path, path: str) -> Dataset:
    """Return the dataset that Dagster loads from a YAML file."""
    component = dg.ComponentTree.for_project(project).load_component(project / DEFS / path)
    [text_dataset] = component.components if hasattr(component, "components") else [component]
    assert isinstance(text_dataset, TextDataset)
    assert not text_dataset.broken
    [dataset] = text_dataset.datasets
    return dataset


def test_a_defs_yaml_of_any_dagster_project_declares_a_dataset(project: Path):
    declare_in(project, "mine", ATTRIBUTES)

    dataset = dataset_at(project, "mine")

    assert (dataset.base, dataset.store.root) == (project, project / "data/store")
    assert keys_of(load(project)) == {
        "small/raw",
        "small/files",
        "small/tokenizer",
        "small/tokens",
        "small/split",
        "small/sequences",
        "small/exports/bin",
        "small/exports/parquet",
        *(["small/report"] if has_report() else []),
    }


def test_dagster_and_tokflow_read_a_yaml_alike(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LENGTH", "16")
    monkeypatch.setenv("LANGUAGE", "de")
    chats = {"messages": "chat", "chat_template": "{{ messages }}{{ env.LENGTH }}"}
    declaration = {
        **ATTRIBUTES,
        "raw": {"files": ["{{ env.LANGUAGE }}/*.jsonl"]},
        "documents": {**chats, "max_rejects": "{{ env('REJECTS', 5) }}"},
        "packing": {"sequence_length": "{{ env.LENGTH }}"},
        "owners": ["team:{{ env.LANGUAGE }}"],
    }
    path = declare_in(project, "deep/er", declaration)

    dataset = dataset_at(project, "deep/er")

    assert (
        dataset
        == load_dataset(path)
        == load_declared(find_declarations(Project(project, project / DEFS))[0])
    )
    assert dataset.raw.files == ("de/*.jsonl",)
    assert dataset.documents.chat_template == "{{ messages }}{{ env.LENGTH }}"
    assert (dataset.documents.max_rejects, dataset.packing.sequence_length) == (5, 16)


def test_the_datasets_of_a_dagster_project_share_a_sensor(project: Path):
    for name, automation in (("small", False), ("oth-er", True)):
        declare_in(project, name, {**ATTRIBUTES, "name": name, "automation": automation})
    declare_in(project, "a", {"name": "a"})  # which cannot be loaded
    (project / "data").mkdir()
    (project / "data/a.txt").write_text("one\n")
    repository = load(project).get_repository_def()

    [sensor] = repository.sensor_defs

    def tick(instance: dg.DagsterInstance) -> tuple[list[str | None], str]:
        with dg.build_sensor_context(instance, repository_def=repository) as context:
            result = sensor.evaluate_tick(context)
        said = "" if result.skip_message is None else result.skip_message
        return [request.job_name for request in result.run_requests or ()], said

    with dg.DagsterInstance.ephemeral() as instance:
        asked = tick(instance)[0]
        declare_in(project, "small", {**ATTRIBUTES, "automation": True})
        declare_in(project, "oth-er", {**ATTRIBUTES, "name": "oth-er"})
        asked_as_edited = tick(instance)[0]
        declare_in(project, "small", {**ATTRIBUTES, "tokeniser": {}})
        said = tick(instance)[1]

    jobs = {target.job_name for target in sensor.targets}
    assert sensor.name == "tokflow_files"
    assert jobs == {"small_build", "small_scan", "oth_er_build", "oth_er_scan"}
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert (asked, asked_as_edited) == (["oth_er_build"], ["small_build"])
    assert "as its YAML was when it was loaded, for now" in said
    assert "'tokeniser'" in said


WRONG: list[tuple[dict[str, Any], str]] = [
    ({**ATTRIBUTES, "tokeniser": {}}, "found 'tokeniser'; did you mean 'tokenizer'?"),
    ({"raw": {"files": "a"}}, "expected `tokenizer:`, found none"),
    ({**ATTRIBUTES, "store": "{{ env.NONE }}"}, "store: expected a variable NONE"),
]


def test_what_is_wrong_is_said_in_the_place_of_the_dataset_alone(
    project: Path, caplog: pytest.LogCaptureFixture
):
    messages = {f"bad{number}": message for number, (_, message) in enumerate(WRONG)}
    paths = {
        name: declare_in(project, name, {**of, "name": name})
        for name, (of, _) in zip(messages, WRONG, strict=True)
    }
    declare_in(project, "good", {**ATTRIBUTES, "name": "good"})

    defs = load(project)

    said = {
        spec.key.path[0]: str(spec.description)
        for spec in defs.resolve_all_asset_specs()
        if spec.key.path[1:] == ["error"]
    }
    assert said.keys() == messages.keys()
    for name, message in messages.items():
        start = f"This dataset cannot be loaded:\n\n    {paths[name]}: "
        assert said[name].startswith(start)
        assert message in said[name]
        assert message in caplog.text
    failed = defs.resolve_job_def("bad0_build").execute_in_process(raise_on_error=False)
    assert messages["bad0"] in failure(failed)
    [check] = failed.get_asset_check_evaluations()
    assert (check.asset_key.path, check.passed) == (["bad0", "error"], False)
    assert defs.resolve_job_def("good_build")


def test_where_definitions_are_only_checked_the_process_ends_with_all_that_is_wrong(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("bad", "worse"):
        declare_in(project, name, {"name": name})
    monkeypatch.setenv("DAGSTER_IS_DEFS_VALIDATION_CLI", "1")  # as `dg check defs` does

    with pytest.raises(SystemExit) as ended:
        load(project)

    assert str(ended.value).count("expected `raw:`, found none") == 2


def test_a_tick_of_the_sensor_fails_the_check_of_what_cannot_be_loaded_once(project: Path):
    declare_in(project, "bad", {"name": "bad"})
    declare_in(project, "good", {**ATTRIBUTES, "name": "good"})
    sensor = load(project).resolve_sensor_def("tokflow_files")

    with dg.DagsterInstance.ephemeral() as instance:
        first = sensor(dg.build_sensor_context(instance=instance))
        second = sensor(dg.build_sensor_context(instance=instance, cursor=first.cursor))

    [failed] = first.asset_events
    assert (failed.asset_key.path, failed.check_name) == (["bad", "error"], "can_be_loaded")
    assert "expected `raw:`, found none" in failed.description
    assert second.asset_events == []


def test_two_of_one_name_are_shown_once_as_an_error_that_names_both(project: Path):
    paths = [declare_in(project, name, {**ATTRIBUTES, "name": name}) for name in ("a-b", "a_b")]
    declare_in(project, "good", {**ATTRIBUTES, "name": "good"})

    defs = load(project)

    dg.Definitions.validate_loadable(defs)
    [said] = [spec for spec in defs.resolve_all_asset_specs() if spec.key.path[0] != "good"]
    assert all(str(path) in str(said.description) for path in paths)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return TextDataset.get_model_cls().model_json_schema()


def test_no_number_and_no_choice_is_without_a_template_at_any_depth(schema: dict[str, Any]):
    assert list(without_template(schema)) == []
    for packing in ("PackingConfig", "PartOfPackingConfig"):
        parts = schema["$defs"][packing]["properties"]["parts"]
        part = parts.get("anyOf", [parts])[0]["additionalProperties"]["properties"]
        template = {"type": "string", "pattern": r"\{[{%]"}
        assert part["sequence_length"]["anyOf"][-1] == template


def without_template(schema: dict[str, Any], *, has_text: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the schemas of numbers and choices for which no text may stand."""
    choices = schema.get("anyOf", [])
    has_text |= any(of.get("type") == "string" and "enum" not in of for of in (schema, *choices))
    if not has_text and (
        "enum" in schema or schema.get("type") in {"integer", "number", "boolean"}
    ):
        yield schema
    for choice in choices:
        yield from without_template(choice, has_text=has_text)
    fields = [of for key in ("properties", "$defs") for of in schema.get(key, {}).values()]
    inner = [schema.get(key) for key in ("items", "additionalProperties")]
    for of in (*fields, *(of for of in inner if isinstance(of, dict))):
        yield from without_template(of)


def test_several_datasets_of_one_yaml_are_all_in_dagster(project: Path):
    datasets = {"b": {"raw": {"files": "b/*.txt"}}, "a": None, "bad": {"documents": {"txt": 1}}}
    defaults = {key: ATTRIBUTES[key] for key in ATTRIBUTES if key != "name"}
    path = declare_in(project, "both", {"defaults": defaults, "datasets": datasets})

    defs = load(project)

    dg.Definitions.validate_loadable(defs)
    jobs = {job.name for job in defs.resolve_all_job_defs()}
    assert {"a_build", "a_scan", "b_build", "b_scan", "bad_build"} <= jobs
    assert {"a/exports/parquet", "b/tokens", "bad/error"} <= keys_of(defs)
    [bad] = [spec for spec in defs.resolve_all_asset_specs() if spec.key.path[0] == "bad"]
    assert f"{path}: datasets.bad: documents: expected one of" in str(bad.description)


def test_assets_lead_to_the_file_that_declares_them(project: Path):
    path = declare_in(project, "own", ATTRIBUTES)

    for spec in load(project).resolve_all_asset_specs():
        references = spec.metadata["dagster/code_references"]
        assert isinstance(references, dg.CodeReferencesMetadataValue)
        assert str(path) in str(references)


def scaffold(project: Path, name: str, scaffold_format: Any = "yaml") -> Path:
    """Return the folder of a scaffold, made as dg makes it."""
    folder = project / "defs" / name
    folder.mkdir(parents=True)
    request = dg.ScaffoldRequest(
        type_name="tokflow.components.TextDataset",
        target_path=folder,
        scaffold_format=scaffold_format,
        project_root=project,
        params=None,
    )
    DatasetScaffolder().scaffold(request)
    return folder


@pytest.mark.parametrize(
    ("there", "files", "text"),
    [
        ("none.jsonl", "data/raw/new/*", "text"),
        ("data/raw/new/a.jsonl", "data/raw/new/*.jsonl", "body"),
    ],
)
def test_files_and_column_are_those_found_in_the_folder_where_they_are_to_be(
    there: str, files: str, text: str, tmp_path: Path
):
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).write_text('{"body": "some text", "id": "1"}\n')

    dataset = load_dataset(scaffold(tmp_path, "new") / "defs.yaml")

    assert (dataset.name, dataset.raw.files) == ("new", (files,))
    assert dataset.documents.text == text


def test_a_name_like_that_of_another_dataset_is_refused(tmp_path: Path):
    project = make_project(tmp_path)
    declare_in(project, "some", "a_b")

    with pytest.raises(click.ClickException, match="found 'a_b' in "):
        scaffold(project, "a-b")
    assert scaffold(project, "a-c").exists()

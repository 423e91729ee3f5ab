"""The wheel in somebody else's project, by the commands of dg and tokflow."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tokflow_tests.dg.harness import ROOT, Place, new_project

pytestmark = pytest.mark.slow

OWN_ASSET = """
import dagster as dg


@dg.asset(deps=[["tales", "exports", "bin"]])
def model() -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"num_parameters": 7})
"""

REFERENCES = """
from shop.definitions import defs

for spec in defs().resolve_all_asset_specs():
    if "dagster/code_references" in spec.metadata:
        [file] = spec.metadata["dagster/code_references"].code_references
        print(spec.key.to_user_string(), file.file_path, file.line_number)
"""

SAMPLE = """
from dagster_shared.yaml_utils.sample_yaml import generate_sample_yaml
from tokflow.components import TextDataset

schema = TextDataset.get_model_cls().model_json_schema()
print(generate_sample_yaml("tokflow.components.TextDataset", schema))
"""

COMPONENT = "tokflow.components.TextDataset"


def lines(number: int) -> list[str]:
    return [json.dumps({"id": f"{n}", "body": f"Once upon {n}. " * 30}) for n in range(number)]


@pytest.fixture(scope="session")
def project(wheel: Place) -> Place:
    """A project with a dataset that dg scaffolds, and an asset of its own downstream."""
    project = new_project(wheel, "shop")
    for name in ("a", "b", "c"):
        project.write(f"data/raw/tales/{name}.jsonl", lines(50))
    project.write("src/shop/defs/model.py", OWN_ASSET)
    project.run("dg", "scaffold", "defs", COMPONENT, "tales")
    return project


@contextmanager
def declaring(project: Place, attributes: str) -> Iterator[str]:
    """Declare one more dataset for as long as the block runs; yield its folder."""
    folder = "src/shop/defs/more"
    project.write(f"{folder}/defs.yaml", [f"type: {COMPONENT}", f"attributes: {attributes}"])
    try:
        yield folder
    finally:
        shutil.rmtree(project.folder / folder)


@pytest.fixture(scope="session")
def built(project: Place) -> Place:
    """The project after one run of the dataset's build job."""
    project.run("dg", "launch", "--job", "tales_build")
    return project


def test_dg_knows_the_component_its_fields_and_what_it_scaffolds_with(project: Place):
    assert COMPONENT in project.run("dg", "list", "components")

    shown = project.run("dg", "utils", "inspect-component", COMPONENT)

    assert "Raw text in, LLM training data out" in shown
    assert '"description": "The formats to write."' in shown
    sample = project.run("python", "-c", SAMPLE)
    assert "\n  raw:\n    files: data/raw/*.jsonl\n" in sample
    assert "\n  exports:\n    - '...'\n" in sample


def test_dg_names_what_a_dataset_lacks_and_takes_templates(project: Place):
    said = {
        "{name: wrong, tokenizer: {kind: bytes}}": "'raw' is a required property",
        "{mixture: {sources: {tales: {weight: 1}}}}": "'name' is a required property",
        "{name: wrong, mixture: {sources: {tales: {weight: 1}}}}": "",
        "{datasets: {one: {raw: {files: x}, tokenizer: {kind: bytes}}}}": "",
        "{name: wrong, raw: {files: x}, tokenizer: {kind: bytes}, exports: ['{{ env.FORMAT }}'], "
        "packing: {parts: {validation: {sequence_length: '{{ env.LENGTH }}'}}}}": "",
    }
    for attributes, problem in said.items():
        with declaring(project, attributes) as folder:
            found = project.run("dg", "check", "yaml", folder, status=1 if problem else 0)
        assert (problem or "validated successfully") in found


def test_what_dg_scaffolds_passes_its_checks_and_lists_own_assets_downstream(project: Place):
    checked = project.run("dg", "check", "defs")  # the YAML, too

    assert "validated successfully" in checked
    assert "All definitions loaded" in checked
    [listed] = [
        asset
        for asset in json.loads(project.run("dg", "list", "defs", "--json"))["assets"]
        if asset["asset_key"] == "model"
    ]
    assert listed["dependency_keys"] == ["tales/exports/bin"]


def test_every_asset_leads_to_the_yaml_that_declares_it(project: Place):
    path = project.folder / "src/shop/defs/tales/defs.yaml"
    line = path.read_text().splitlines().index(f"type: {COMPONENT}") + 1

    found = project.run("python", "-c", REFERENCES).splitlines()

    assert f"tales/exports/bin {path} {line}" in found
    assert sum(of.startswith("tales/") for of in found) == 9  # a report, too


def test_the_build_job_builds_everything_in_one_run_and_own_assets_follow(built: Place):
    built.run("dg", "launch", "--assets", "model")

    manifest = built.folder / "data/store/tales/exports/bin/latest/_tokflow/manifest.json"
    assert json.loads(manifest.read_text())["dataset"] == "tales"


def test_tokflow_plans_and_runs_the_datasets_of_the_project_one_stands_in(built: Place):
    inside = Place(folder=built.folder / "src/shop", home=built.home)

    planned = json.loads(inside.run("tokflow", "plan", "--json"))
    ran = Place(folder=built.home, home=built.home).run("tokflow", "run", "--project", built.folder)

    assert [of["dataset"] for of in planned["datasets"]] == ["tales"]
    assert "tales: nothing to do" in ran


def test_tokflow_run_of_a_changed_file_is_a_run_that_dagster_knows(built: Place):
    built.write("data/raw/tales/a.jsonl", lines(60))

    printed = built.run("tokflow", "run", "tales")

    assert "a.jsonl" in printed
    assert "tales_build" in built.run("dagster", "run", "list", "--limit", "1")


def test_tokflow_init_declares_a_dataset_that_dg_lists(project: Place):
    project.write("news.jsonl", lines(20))

    project.run("tokflow", "init", "news.jsonl")
    try:
        listed = project.run("dg", "list", "defs", "--assets", "group:news")
        planned = json.loads(project.run("tokflow", "plan", "news", "--json"))
    finally:
        shutil.rmtree(project.folder / "src/shop/defs/news")

    assert "news/exports/bin" in listed
    assert planned["datasets"][0]["num_files"] == 1


def test_steps_of_assets_run_in_the_process_of_their_run(built: Place):
    step = ("--assets", 'key:"tales/sequences"', "--partition", "a.jsonl")
    log = built.log_of("dg", "launch", *step)

    assert "Executing steps in process" in log
    assert "Launching subprocess" not in log


def test_a_wrong_field_is_named_by_dg(project: Place):
    with declaring(project, "{name: wrong, raw: {file: x}}") as folder:
        # Without the folder dg checks one YAML alone of each type of component.
        of_schema = project.run("dg", "check", "yaml", folder, status=1)
        of_dataset = project.log_of("dg", "check", "defs", "--no-check-yaml", status=1)

    assert "'file' was unexpected" in of_schema
    assert "did you mean 'files'?" in of_dataset
    assert "Stack Trace" not in of_dataset


def test_several_datasets_of_one_yaml_pass_the_schema(project: Place):
    defaults = "defaults: {tokenizer: {kind: bytes}, raw: {group: 1 GB}}"
    datasets = "datasets: {c: {raw: {files: '*.c'}}, all: {raw: {files: '*.*'}, split: null}}"
    with declaring(project, f"{{{defaults}, {datasets}}}") as folder:
        checked = project.run("dg", "check", "yaml", folder)
        listed = project.run("dg", "list", "defs")

    assert "validated successfully" in checked
    assert "all_build" in listed


def test_dg_dev_serves_the_project(project: Place):
    with project.serving("dg", "dev") as ask:
        [location] = ask("{workspaceOrError{...on Workspace{locationEntries{name loadStatus}}}}")[
            "workspaceOrError"
        ]["locationEntries"]

    assert location == {"name": "shop", "loadStatus": "LOADED"}


def test_dg_works_in_this_repository_too(project: Place):
    here = Place(folder=ROOT, home=project.home)

    assert "All definitions loaded" in here.run("dg", "check", "defs")
    assert "demo_build" in here.run("dg", "list", "defs")

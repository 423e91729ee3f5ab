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


def test_dg_knows_the_component_and_its_fields(project: Place):
    shown = project.run("dg", "utils", "inspect-component", COMPONENT)

    assert "Raw text in, LLM training data out" in shown
    assert '"description": "The formats to write."' in shown


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


def test_a_wrong_field_is_named_by_dg(project: Place):
    with declaring(project, "{name: wrong, raw: {file: x}}") as folder:
        # Without the folder dg checks one YAML alone of each type of component.
        of_schema = project.run("dg", "check", "yaml", folder, status=1)
        of_dataset = project.log_of("dg", "check", "defs", "--no-check-yaml", status=1)

    assert "'file' was unexpected" in of_schema
    assert "did you mean 'files'?" in of_dataset
    assert "Stack Trace" not in of_dataset


def test_several_datasets_of_one_yaml_with_templates_pass_the_schema(project: Place):
    defaults = "defaults: {tokenizer: {kind: bytes}, exports: ['{{ env.FORMAT }}']}"
    datasets = "datasets: {c: {raw: {files: '*.c'}}, all: {raw: {files: '*.*'}, split: null}}"
    with declaring(project, f"{{{defaults}, {datasets}}}") as folder:
        checked = project.run("dg", "check", "yaml", folder)

    assert "validated successfully" in checked


def test_dg_dev_serves_the_project(project: Place):
    with project.serving("dg", "dev") as ask:
        [location] = ask("{workspaceOrError{...on Workspace{locationEntries{name loadStatus}}}}")[
            "workspaceOrError"
        ]["locationEntries"]

    assert location == {"name": "shop", "loadStatus": "LOADED"}


def test_dg_works_in_this_repository_too(project: Place):
    here = Place(folder=ROOT, home=project.home)

    assert "demo_build" in here.run("dg", "list", "defs")

"""The wheel in somebody else's project, by the commands of dg and tokflow."""

import json

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

COMPONENT = "tokflow.components.TextDataset"


def lines(number: int) -> list[str]:
    return [json.dumps({"id": f"{n}", "body": f"Once upon {n}. " * 30}) for n in range(number)]


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A project with a dataset that dg scaffolds, and an asset of its own downstream."""
    project = new_project(tmp_path_factory.mktemp("dg"))
    for name in ("a", "b", "c"):
        project.write(f"data/raw/tales/{name}.jsonl", lines(50))
    project.write("src/shop/defs/model.py", OWN_ASSET)
    project.run("dg", "scaffold", "defs", COMPONENT, "tales")
    return project


def test_dg_knows_the_component_its_fields_and_what_it_scaffolds_with(project: Place):
    assert COMPONENT in project.run("dg", "list", "components")

    shown = project.run("dg", "utils", "inspect-component", COMPONENT)

    assert "Raw text in, LLM training data out" in shown
    assert '"description": "The formats to write."' in shown
    assert "Field or column that holds the text; by default the one" in shown


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
    assert sum(of.startswith("tales/") for of in found) == 8


def test_the_build_job_builds_everything_in_one_run_and_own_assets_follow(project: Place):
    project.run("dg", "launch", "--job", "tales_build")
    project.run("dg", "launch", "--assets", "model")

    manifest = project.folder / "data/store/tales/exports/bin/latest/manifest.json"
    assert json.loads(manifest.read_text())["dataset"] == "tales"


def test_a_wrong_field_is_named_by_dg(project: Place):
    path = project.folder / "src/shop/defs/wrong/defs.yaml"
    project.write(str(path), [f"type: {COMPONENT}", "attributes: {name: wrong, raw: {file: x}}"])
    try:
        # Without the folder dg checks one YAML alone of each type of component.
        of_schema = project.run("dg", "check", "yaml", "src/shop/defs/wrong", status=1)
        of_dataset = project.run("dg", "check", "defs", status=1)
    finally:
        path.unlink()
        path.parent.rmdir()

    assert "'file' was unexpected" in of_schema
    assert "did you mean 'files'?" in of_dataset


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

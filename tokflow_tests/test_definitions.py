"""What Dagster loads from this checkout."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tokflow.definitions import defs
from tokflow.pipeline.declared import list_declared
from tokflow_tests.projects import attributes, declare_in, make_project

ROOT = Path(__file__).parent.parent


def test_all_declared_datasets_load():
    loaded = defs()

    dg.Definitions.validate_loadable(loaded)
    assert {spec.group_name for spec in loaded.resolve_all_asset_specs()} == set(list_declared())


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster calls it
def test_the_sensors_of_alerts_are_there_once_where_the_environment_asks_for_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKFLOW_ALERT_WEBHOOK", "http://127.0.0.1:9/")
    declare_in(project, "own", "own")
    assert "tokflow_alert_webhook" in {of.name for of in defs().sensors or ()}

    (project / "mine/defs/alerts.py").write_text(
        "import dagster as dg\nfrom tokflow.components import failure_alerts\n"
        "alerts = dg.Definitions(sensors=failure_alerts())\n"
    )
    dg.Definitions.validate_loadable(defs())


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster calls it
def test_in_another_project_its_own_datasets_load(project: Path):
    declare_in(project, "own", "own")

    loaded = defs()

    assert {spec.key.path[0] for spec in loaded.resolve_all_asset_specs()} == {"own"}
    assert loaded.executor is dg.in_process_executor


def test_a_file_that_dagster_cannot_read_takes_no_dataset_with_it(project: Path):
    declare_in(project, "own", "own")
    declare_in(project, "bad", "any").write_text("type: tokflow.components.TextDataset\n{")

    loaded = defs()

    dg.Definitions.validate_loadable(loaded)
    [said] = [of for of in loaded.resolve_all_asset_specs() if of.key.path[0] != "own"]
    assert "bad/defs.yaml: line 2: expected" in str(said.description)
    assert loaded.resolve_job_def("own_build")


def test_datasets_load_where_the_installed_package_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_project(tmp_path, defs="json/defs")
    (tmp_path / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "json"\n')
    declare_in(tmp_path, "own", "own", defs="json/defs")
    monkeypatch.chdir(tmp_path)

    assert defs().resolve_job_def("own_build")


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")
def test_no_dataset_takes_another_with_it(project: Path):
    declare_in(project, "a", attributes("a_b", executor="in_process"))
    declare_in(project, "b", attributes("c", executor="multiprocess"))
    for number, name in enumerate(["a b", "a  b", "数据", "", "***", 5]):
        declare_in(project, f"bad{number}", {**attributes("any"), "name": name})

    loaded = defs()

    dg.Definitions.validate_loadable(loaded)
    keys = {spec.key.to_user_string(): spec for spec in loaded.resolve_all_asset_specs()}
    assert len([key for key in keys if key.endswith("/error")]) == 7
    assert "since a code location has one executor" in str(keys["c/error"].description)
    assert "a_b/tokens" in keys


def test_the_wheel_brings_no_dataset():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]

    assert "tokflow.defs*" in setuptools["packages"]["find"]["exclude"]
    [(package, data)] = setuptools["package-data"].items()
    assert (package, data[0]) == ("tokflow", "py.typed")
    assert not [pattern for pattern in data if pattern.endswith((".yaml", "*"))]


def test_loading_imports_nothing_heavy_and_writes_nothing(tmp_path: Path):
    program = (
        "import sys, dagster as dg\n"
        "from tokflow.definitions import defs\n"
        "dg.Definitions.validate_loadable(defs())\n"
        "heavy = 'pandas transformers torch gigatoken tokenizers tiktoken huggingface_hub fsspec'\n"
        "print([name for name in heavy.split() if name in sys.modules])\n"
    )
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_project_has_one_code_location_no_telemetry_and_its_state_in_itself():
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"][0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text())

    assert workspace["python_module"]["module_name"] == f"{project['root_module']}.definitions"
    assert workspace["python_module"]["location_name"] == project["code_location_name"]
    assert settings["telemetry"] == {"enabled": False}
    assert settings["instance_class"]["class"] == "ProjectInstance"
    assert ".dagster/" in (ROOT / ".gitignore").read_text().splitlines()

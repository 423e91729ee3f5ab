import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tokflow
from tokflow.cli.ui import _print_pages, code_location
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.pipeline.run import build_dataset
from tokflow_tests.cli.commands import json_of, refused
from tokflow_tests.projects import attributes, declare_in, make_project


def test_the_web_ui_is_for_this_machine_alone():
    document = json_of("ui", "--port", "3001")

    assert document["url"] == "http://127.0.0.1:3001"
    assert Path(document["folder"]) == Path(tokflow.__file__).parent.parent


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_the_web_ui_is_not_exposed_by_mistake(host: str):
    assert "UI has no login" in refused("ui", "--host", host)


def test_the_web_ui_is_exposed_by_name():
    exposed = ("--expose-without-login", "--port", "3001")

    assert json_of("ui", "--host", "192.168.1.5", *exposed)["url"] == "http://192.168.1.5:3001"
    # Where it listens on all addresses, this one is for who sits here.
    assert json_of("ui", "--host", "::", *exposed)["url"] == "http://[::1]:3001"


def test_reports_and_viewers_of_what_is_built_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    project = make_project(tmp_path / "project")
    monkeypatch.chdir(project)
    declare_in(project, "mine", attributes("mine", exports=["bin"]))
    declare_in(project, "broken", {})
    _print_pages()
    assert capsys.readouterr().out == ""
    (project / "data").mkdir()
    (project / "data/a.txt").write_text("a text")
    dataset = load_declared(list_declared()["mine"])
    build_dataset(dataset)
    (dataset.folder / "report").mkdir()
    (dataset.folder / "report/report.html").touch()

    _print_pages()

    store = dataset.folder.relative_to(project)
    assert capsys.readouterr().out.splitlines() == [
        f"report of mine: {store}/report/report.html",
        f"viewer of mine: tokflow inspect {store}/exports/bin --html viewer.html",
    ]


def test_a_port_that_is_taken_is_said_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "take a free port: --port 0" in refused("ui", "--port", server.getsockname()[1])


PROJECTS = {
    "": ("tokflow.definitions", ["--module-name", "tokflow.definitions"]),
    "[tool.ruff]": ("tokflow.definitions", ["--module-name", "tokflow.definitions"]),
    "[tool.dagster]\nmodule_name = 'own'": ("own", ["--module-name", "own"]),
    "[tool.dg.project]\nroot_module = 'own'": (
        "own.definitions",
        ["--module-name", "own.definitions"],
    ),
    "[tool.dg.project]\nroot_module = 'own'\ncode_location_name = 'named'\n"
    "code_location_target_module = 'own.other'": ("named", ["--module-name", "own.other"]),
    "[tool.dg.project]\nroot_module = 'own'\nautoload_defs = true": (
        "own.defs",
        ["--autoload-defs-module-name", "own.defs"],
    ),
}


@pytest.mark.parametrize("pyproject", PROJECTS)
def test_a_project_s_own_definitions_are_loaded_under_the_name_of_dagster_dev(
    pyproject: str, tmp_path: Path
):
    (tmp_path / "pyproject.toml").write_text(pyproject)

    location = code_location(tmp_path)

    assert location is not None
    assert (location.name, list(location.options)) == PROJECTS[pyproject]


def test_without_a_web_server_it_is_said_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "dagster_webserver", None)  # as if there were none

    assert "pip install 'dagster-tokflow[ui]'" in refused("ui")


def test_the_history_is_where_runs_keep_it_and_a_workspace_is_left_to_dagster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    homes = [json_of("ui")["dagster_home"]]
    (tmp_path / "dagster.yaml").write_text("storage: {sqlite: {base_dir: state}}\n")
    homes.append(json_of("ui")["dagster_home"])
    monkeypatch.setenv("DAGSTER_HOME", "/another")
    (tmp_path / "workspace.yaml").write_text("load_from: []\n")
    found = json_of("ui")

    assert homes == [str(tmp_path / ".dagster"), str(tmp_path)]
    assert (found["dagster_home"], found["code_location"]) == ("/another", "workspace.yaml")


SHOW_ENVIRONMENT = """
import json, os, subprocess, sys
from tokflow.cli import main

class Shown(subprocess.Popen):
    def __init__(self, command, env, **other):
        print(json.dumps(env), file=sys.stderr, flush=True)
        os._exit(1)

subprocess.Popen = Shown
main()
"""


def test_the_web_ui_has_the_environment_of_its_user_and_not_that_of_a_command(tmp_path: Path):
    spared = {"OPENBLAS_NUM_THREADS", "PYDANTIC_DISABLE_PLUGINS"}
    asked = {name: os.environ[name] for name in os.environ if name not in spared}
    asked |= {"OPENBLAS_NUM_THREADS": "1", "DAGSTER_HOME": str(tmp_path)}

    command = [sys.executable, "-c", SHOW_ENVIRONMENT, "ui", "--port", "0"]
    done = subprocess.run(command, env=asked, capture_output=True, check=False)

    assert json.loads(done.stderr) == asked | {"DAGSTER_DISABLE_TELEMETRY": "1"}

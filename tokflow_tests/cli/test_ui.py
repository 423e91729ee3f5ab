import socket
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

"""Commands about the datasets of a project."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokflow.cli.recorded import note_recorded
from tokflow.pipeline.declared import find_declarations, load_declared
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.project import Project
from tokflow.pipeline.run import build_dataset
from tokflow_tests.cli.commands import json_of, refused, run
from tokflow_tests.projects import DEFS, declare_in, make_project
from tokflow_tests.tiny import SMALL, write_raw


def project_in(folder: Path) -> Path:
    """Return a project with two datasets."""
    project = make_project(folder / "project")
    write_raw(project, {"a.jsonl": ["one", "two"]})
    for name in ("one", "two-b"):
        declare_in(project, name, {**SMALL, "name": name, "exports": ["bin"], "report": False})
    return project


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A home, and a project that is built and recorded there."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))
        for declaration in find_declarations(Project(project_in(home), home / "project" / DEFS)):
            dataset = load_declared(declaration)
            build_dataset(dataset)
            note_recorded(dataset, make_plan(dataset).own)
    return home, home / "project"


@pytest.fixture
def project(
    first_run: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The built project; one stands in another folder. New declarations are removed again."""
    home, project = first_run
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("TOKFLOW_PROJECT", "")  # which a command sets, for the processes it begins
    monkeypatch.chdir(tmp_path)
    yield project
    shutil.rmtree(project / "mine/defs/bad", ignore_errors=True)


def names_of(document: dict) -> list[str]:
    return [of["dataset"] for of in document["datasets"]]


def test_a_project_can_be_named(project: Path):
    for command in ("plan", "run", "gc"):
        assert set(names_of(json_of(command, "--project", project))) == {"one", "two-b"}, command
        assert names_of(json_of(command, "one", "--project", project)) == ["one"], command


def test_it_is_verified_by_name_and_its_ui_started(project: Path):
    assert run("verify", "two-b", "--project", project).stdout.endswith("4 outputs: all well\n")
    assert "two-b" in run("tokenizers", "two-b", "--project", project).stdout
    assert json_of("ui", "--project", project)["folder"] == str(project)


def test_without_a_project_a_command_says_what_to_do(project: Path):
    message = refused("run")

    assert "expected a dataset, found no project in" in message
    assert "name it by --project, or name a file by --config" in message
    assert "expected a folder in a project" in run("run", "--project", "none").stderr


def test_a_broken_neighbour_is_said_and_stops_no_other(project: Path):
    bad = declare_in(project, "bad", {"name": "bad"})

    results = [run(command, "--project", project) for command in ("run", "plan", "verify")]

    for result in results:
        assert result.exit_code == 2
        assert result.stderr == (
            f"error: {bad}: expected `raw:`, found none; add it, as in "
            "`raw: {files: data/raw/*.jsonl}`\n"
        )
    assert "two-b: nothing to do" in results[0].stdout
    assert "one: nothing to build" in results[1].stdout
    assert results[2].stdout.endswith("8 outputs: all well\n")
    assert run("run", "one", "--project", project).exit_code == 0
    assert run("run", "bad", "--project", project).exit_code == 2
    named = run("run", "bad", "one", "--project", project)
    assert (named.exit_code, "one: nothing to do" in named.stdout) == (2, True)
    assert run("gc", "--project", project).exit_code == 2

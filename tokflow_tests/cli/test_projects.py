"""Commands about the datasets of a project."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tokflow.cli.app import app
from tokflow.cli.recorded import note_recorded
from tokflow.pipeline.declared import find_declarations, load_declared
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.project import Project
from tokflow.pipeline.run import build_dataset
from tokflow.pipeline.yaml_file import _standard_input
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
            note_recorded(dataset, [of.output for of in make_plan(dataset).own])
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


def declare(folder: Path, file: str, **fields: Any) -> Path:
    attributes = {
        "raw": {"files": "raw/*.jsonl"},
        "tokenizer": {"kind": "bytes"},
        "exports": ["bin"],
        "store": "store",
        **fields,
    }
    (folder / file).write_text(yaml.safe_dump(attributes))
    return folder / file


@pytest.fixture
def two(tmp_path: Path) -> list[str | Path]:
    """The options for two datasets."""
    write_raw(tmp_path, {"a.jsonl": ["one"]})
    configs = [declare(tmp_path, f"{name}.yaml", name=name) for name in ("one", "two")]
    return [option for config in configs for option in ("--config", config)]


def test_every_config_is_built_planned_verified_and_collected(two: list[str | Path]):
    assert run("run", *two).exit_code == 0

    for command in ("run", "plan", "gc"):
        document = json.loads(run(command, *two, "--json").stdout)
        assert [one["dataset"] for one in document["datasets"]] == ["one", "two"]
    verified = run("verify", *two).stdout.splitlines()
    assert verified[-1] == "8 outputs: all well"
    assert [line.split()[1] for line in verified[:-2]] == ["one:"] * 4 + ["two:"] * 4


def test_two_configs_of_one_name_and_one_store_are_refused(two: list[str | Path], tmp_path: Path):
    same = declare(tmp_path, "same.yaml", name="two")

    message = refused("run", *two, "--config", same)

    assert message == (
        "error: --config: expected datasets of different names, or with different stores, found "
        f"'two' in {tmp_path}/store for both {tmp_path}/two.yaml and {same}; rename one of them, "
        "or leave one out\n"
    )
    assert not (tmp_path / "store").exists()


def test_names_choose_of_the_datasets_of_configs(two: list[str | Path]):
    for command in ("run", "plan", "tokenizers"):
        document = json.loads(run(command, "two", *two, "--json").stdout)
        assert len(next(iter(document.values()))) == 1, command
    assert "two:" not in (verified := run("verify", "two", *two)).stdout  # of one alone
    assert verified.stdout.endswith("4 outputs: all well\n")
    assert run("verify", "twi", *two).stderr == (
        "error: dataset 'twi': expected one of one, two, found none of that name in the files of "
        "--config; did you mean 'two'?\n"
    )


@pytest.mark.parametrize("command", ["run", "verify"])
def test_an_error_that_arises_after_parsing_names_the_dataset(
    command: str, two: list[str | Path], tmp_path: Path
):
    files = ["raw/*.jsonl", "raw/*.txt"]
    last = declare(tmp_path, "last.yaml", name="last", raw={"files": files})

    run("run", *two)

    assert "error: dataset 'last': raw.files" in run(command, *two, "--config", last).stderr
    assert "error: dataset 'last': raw.files" in run(command, "--config", last).stderr


@pytest.fixture
def piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs a command of a folder with a config on its standard input, which is read once."""
    monkeypatch.chdir(tmp_path)

    def run_piped(command: str, text: bytes) -> Result:
        _standard_input.cache_clear()
        return CliRunner().invoke(app, [command, "--config", "-"], input=text)

    yield run_piped
    _standard_input.cache_clear()


def test_a_config_can_come_from_standard_input(tmp_path: Path, piped: Callable[..., Result]):
    write_raw(tmp_path, {"a.jsonl": ["one", "two"]})
    text = declare(tmp_path, "one.yaml", name="one").read_bytes()

    for command in ("plan", "run", "verify"):
        assert piped(command, text).exit_code == 0, command
    assert (tmp_path / "store/one/exports/bin/latest").exists()
    for wrong, found in ((b"a: [", "standard input: line 1"), (b"\xff", "standard input: ")):
        result = piped("plan", wrong)
        assert (result.exit_code, found in result.stderr) == (2, True), result.stderr

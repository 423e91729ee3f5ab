import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import tokflow
from tokflow.cli.ui import CodeLocation, _print_pages, code_location, serve
from tokflow.components import open_instance
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.pipeline.run import build_dataset
from tokflow_tests.cli.commands import json_of, refused
from tokflow_tests.projects import attributes, declare_in, make_project
from tokflow_tests.serving import ask, wait_for
from tokflow_tests.tiny import SMALL, write_raw


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


LAUNCH = """mutation Launch($job: String!) { launchRun(executionParams: {mode: "default",
    selector: {repositoryLocationName: "tokflow.definitions", repositoryName: "__repository__",
    jobName: $job}}) { __typename ... on LaunchRunSuccess { run { runId } } } }"""
RELOAD = """mutation { reloadRepositoryLocation(repositoryLocationName: "tokflow.definitions") {
    ... on WorkspaceLocationEntry { loadStatus } } }"""
JOBS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name } } } } }"
STATUS = "query Status($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
RUNS = "{ runsOrError { ... on Runs { results { jobName } } } }"


def declare(folder: Path, name: str, **others: Any) -> None:
    if not (folder / "pyproject.toml").is_file():
        make_project(folder)
        with (folder / "pyproject.toml").open("a") as file:
            file.write('code_location_target_module = "tokflow.definitions"\n')
    declare_in(folder, name, {**SMALL, "name": name, "exports": ["bin"], **others})


def left_in(folder: Path) -> dict[int, str]:
    """Return the command of each process that stands in a folder."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if (process / "cwd").readlink() == folder:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process.name)] = command
    return found


class WebUI:
    """`tokflow ui` in a project, and what asks it something."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "ui.log"
        home = {name: of for name, of in os.environ.items() if name != "DAGSTER_HOME"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tokflow", "ui", "--port", "0"],
                cwd=folder,
                env=home,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        pattern = r"web UI: (http://\S+)"
        self.url = wait_for(lambda: re.search(pattern, self.log.read_text()), "the web UI").group(1)

    def ask(self, query: str, headers: dict[str, str] | None = None, **variables: str) -> Any:
        """Return the data of a query that is sent as a page of the UI sends it."""
        return ask(self.url, query, variables, **{"Origin": self.url, **(headers or {})})

    def launch(self, job: str) -> str:
        """Launch a run and return its id."""
        return str(self.ask(LAUNCH, job=job)["launchRun"]["run"]["runId"])

    def status(self, run: str) -> str:
        return str(self.ask(STATUS, run=run)["runOrError"]["status"])

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture
def ui(tmp_path: Path) -> Iterator[WebUI]:
    write_raw(tmp_path, {"a.jsonl": ["one", "two"]})
    declare(tmp_path, "small")
    started = WebUI(tmp_path)
    yield started
    started.process.terminate()
    started.process.wait(30)
    for number in left_in(tmp_path):
        os.kill(number, signal.SIGKILL)


@pytest.mark.slow
def test_a_run_is_launched_from_the_ui_s_own_pages_alone_and_all_processes_end(ui: WebUI):
    run = ui.launch("small_build")
    wait_for(lambda: ui.status(run) in ("SUCCESS", "FAILURE"), "the run")

    assert ui.status(run) == "SUCCESS"
    assert (ui.folder / "store/small").is_dir()
    with urllib.request.urlopen(ui.url) as page:
        assert b'"telemetryEnabled": false' in page.read()
    before = len(ui.ask(RUNS)["runsOrError"]["results"])
    for foreign in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ui.ask(LAUNCH, foreign, job="small_build")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{ui.url}/graphql?query=mutation%7BlaunchRun%7D")
    assert len(ui.ask(RUNS)["runsOrError"]["results"]) == before
    declare(ui.folder, "other")
    assert "other_build" not in str(ui.ask(JOBS))
    ui.ask(RELOAD)
    wait_for(lambda: "other_build" in str(ui.ask(JOBS)), "the other dataset")

    assert ui.end() == 0
    assert left_in(ui.folder) == {}


@pytest.mark.slow
def test_a_run_that_goes_on_has_failed_when_the_ui_ends(ui: WebUI, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.jsonl"
        declare(ui.folder, "waiting", raw={"files": [url]})
        ui.ask(RELOAD)
        wait_for(lambda: "waiting_build" in str(ui.ask(JOBS)), "the other dataset")
        run = ui.launch("waiting_build")
        wait_for(lambda: ui.status(run) == "STARTED", "the run")
        with silent.accept()[0]:
            ui.end()

    assert left_in(ui.folder) == {}
    monkeypatch.chdir(ui.folder)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with open_instance() as instance:
        assert instance.get_run_by_id(run).status is dg.DagsterRunStatus.FAILURE


@pytest.mark.slow
def test_a_daemon_that_ends_is_said_and_ends_the_rest(ui: WebUI):
    [daemon] = [number for number, command in left_in(ui.folder).items() if "-daemon" in command]
    os.kill(daemon, signal.SIGKILL)

    assert ui.process.wait(30) == 1
    assert "the daemon of the web UI ended by itself, with status -9" in ui.log.read_text()
    assert left_in(ui.folder) == {}


def test_a_code_server_that_cannot_start_is_said(capfd: pytest.CaptureFixture[str]):
    location = CodeLocation("own", ["--no-such-option"])

    status = serve(location, host="127.0.0.1", port=0, environment=dict(os.environ))

    assert status == 1
    said = capfd.readouterr().err
    assert "dagster code-server start" in said
    assert "the code server of the web UI ended by itself, with status 2" in said
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

"""The processes of `tokflow ui`, from their start to their end."""

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

from tokflow.cli.ui import CodeLocation, serve
from tokflow.components import open_instance
from tokflow_tests.projects import declare_in, make_project
from tokflow_tests.serving import ask, wait_for
from tokflow_tests.tiny import SMALL, write_raw

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

"""The services of deploy/ with a real PostgreSQL: builds, restarts, backups, the login."""

import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from dagster import DagsterInstance

from tokflow_tests.deploy.compose import FILES, SECRETS
from tokflow_tests.deploy.harness import Deployment, deployment
from tokflow_tests.projects import attributes, declare_in, make_project
from tokflow_tests.serving import wait_for, webhook

pytestmark = pytest.mark.deploy

MANIFEST = "data/store/tales/exports/bin/latest/_tokflow/manifest.json"

SERVICES = ("code", "webserver", "daemon")

LAUNCH = """mutation($execution: ExecutionParams!) {
  launchPipelineExecution(executionParams: $execution) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on PythonError { message }
  }
}"""

TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"

RUNS = "{runsOrError{... on Runs{results{runId status rootRunId jobName}}}}"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment of two small datasets, one of which takes some seconds to build."""
    project = make_project(tmp_path_factory.mktemp("project"))
    (project / "data/large").mkdir(parents=True)
    (project / "data/a.txt").write_text("Once upon a time.\n" * 50)
    lines = "".join(f"{number} and {number**2} are numbers\n" for number in range(200_000))
    for name in "ab":
        (project / f"data/large/{name}.txt").write_text(lines + name)
    packing, exports = {"sequence_length": 8}, ["bin"]
    tales = attributes("tales", packing=packing, exports=exports, store="data/store")
    declare_in(project, "tales", tales)
    large = {
        "raw": {"files": "data/large/*.txt"},
        "store": "data/store",
        "exports": exports,
        "tokenizer": {"kind": "trained", "vocab_size": 300},
    }
    declare_in(project, "slow", attributes("slow", **large))
    declare_in(project, "bad", {"name": "bad"})
    with deployment(project) as deployed, webhook() as (url, told):
        deployed.credentials["TOKFLOW_ALERT_WEBHOOK"] = url
        deployed.told = told
        deployed.start(*SERVICES)
        yield deployed


def launch(deployed: Deployment, job: str, config: Any = None) -> Any:
    selector = {
        "repositoryLocationName": "tokflow",
        "repositoryName": "__repository__",
        "jobName": job,
    }
    asked = {"selector": selector, "runConfigData": config or {}, "mode": "default"}
    return deployed.ask(LAUNCH, execution=asked)["launchPipelineExecution"]


def runs(deployed: Deployment) -> dict[str, Any]:
    results = deployed.ask(RUNS)["runsOrError"]["results"]
    return {run["runId"]: run for run in results}


def build(deployed: Deployment, job: str = "tales_build") -> str:
    """Build by the web server's GraphQL, and return the run once it has succeeded."""
    run_id = str(launch(deployed, job)["run"]["runId"])

    def status() -> str | None:
        found = str(runs(deployed)[run_id]["status"])
        return found if found in ("SUCCESS", "FAILURE", "CANCELED") else None

    assert wait_for(status, job) == "SUCCESS", deployed.last_events(run_id)
    return run_id


def test_a_build_is_launched_by_graphql_and_recorded_in_postgres(deployed: Deployment):
    run_id = build(deployed)

    assert json.loads((deployed.project / MANIFEST).read_text())["dataset"] == "tales"
    [[status]] = deployed.postgres.ask(f"SELECT status FROM runs WHERE run_id = '{run_id}'")
    assert status == "SUCCESS"
    assert not list(deployed.state.rglob("*.db"))


def test_the_web_ui_shows_no_password(deployed: Deployment):
    shown = json.dumps(deployed.ask("{instance{info}}"))

    assert "run_monitoring" in shown
    assert SECRETS["TOKFLOW_POSTGRES_PASSWORD"] not in shown


def test_a_run_config_leads_to_no_path_and_no_variable(deployed: Deployment):
    of_resource = {"resources": {"workers": {"config": {"store": "/etc"}}}}
    of_variable = {"ops": {"tales_build": {"config": {"x": {"env": "TOKFLOW_POSTGRES_URL"}}}}}

    for config in (of_resource, of_variable):
        assert launch(deployed, "tales_build", config)["__typename"] == "RunConfigValidationInvalid"


def status_of(port: int, path: str, **headers: str) -> int:
    url = f"http://localhost:{port}{path}"
    try:
        return int(urlopen(Request(url, headers=headers), timeout=60).status)
    except HTTPError as error:
        return error.code


def test_the_web_server_answers_its_own_name_and_pages_alone(deployed: Deployment):
    port, of_elsewhere = deployed.web_port, "http://elsewhere.example"

    assert status_of(port, "/server_info") == 200
    assert status_of(port, "/server_info", Host="127.0.0.1") == 200
    assert status_of(port, "/server_info", Host="elsewhere.example") == 403
    assert status_of(port, "/server_info", Origin=of_elsewhere) == 403
    assert status_of(port, "/graphql?query=mutation{x}") == 403


def test_a_run_that_fails_is_told_to_the_webhook_of_the_credentials(deployed: Deployment):
    run_id = str(launch(deployed, "bad_build")["run"]["runId"])

    said = wait_for(lambda: [of for of in deployed.told if run_id in of["text"]], "an alert")

    assert len(said) == 1
    assert said[0]["text"].startswith("bad_build failed")
    assert "expected `raw:`, found none" in said[0]["text"]


def test_a_run_that_a_crash_of_the_machine_ends_is_done_again(deployed: Deployment):
    first = str(launch(deployed, "slow_build")["run"]["runId"])
    wait_for(lambda: runs(deployed)[first]["status"] == "STARTED", "start")

    deployed.postgres.stop("immediate")
    deployed.stop(*SERVICES, kill=True)
    deployed.postgres.start()
    deployed.start(*SERVICES)

    def again() -> str | None:
        found = [run for run in runs(deployed).values() if run["rootRunId"] == first]
        done = [run["runId"] for run in found if run["status"] == "SUCCESS"]
        return done[0] if done else None

    second = wait_for(again, "the second run")
    assert second != first
    assert runs(deployed)[first]["status"] == "FAILURE"
    assert (
        deployed.project / "data/store/slow/exports/bin/latest/_tokflow/manifest.json"
    ).is_file()


def test_retention_removes_old_runs_but_for_those_that_say_what_is_built(deployed: Deployment):
    made = build_after_change(deployed)
    same = build(deployed)
    assert (deployed.state / "storage" / same).is_dir()

    deployed.start("retention", TOKFLOW_KEEP_DAYS="0")
    deployed.stop("retention")

    left = runs(deployed)
    assert made in left
    assert same not in left
    assert not (deployed.state / "storage" / same).exists()
    counted = f"SELECT count(*) FROM event_logs WHERE run_id = '{same}'"
    assert deployed.postgres.ask(counted) == [(0,)]
    assert build(deployed) not in left


def build_after_change(deployed: Deployment) -> str:
    path: Path = deployed.project / "data/a.txt"
    path.write_text(path.read_text() + "And they lived.\n")
    return build(deployed)


def test_who_knows_the_password_gets_through_the_proxy_and_no_page_of_elsewhere(
    deployed: Deployment,
):
    login = {"Authorization": "Basic " + b64encode(b"mai:letmein").decode()}
    wrong = {"Authorization": "Basic " + b64encode(b"mai:guess").decode()}
    with deployed.proxy() as port:
        own = f"http://localhost:{port}"
        assert status_of(port, "/server_info") == 401
        assert status_of(port, "/server_info", **wrong) == 401
        assert status_of(port, "/server_info", **login) == 200
        assert status_of(port, "/server_info", Origin=own, **login) == 200
        assert status_of(port, "/server_info", Origin="http://elsewhere.example", **login) == 403
        assert status_of(port, "/graphql?query={version}", **login) == 403
        of_another_name = Request(f"http://127.0.0.1:{port}/server_info", headers=login)
        assert urlopen(of_another_name, timeout=60).read() == b""


def test_a_backup_brings_back_history_and_data(deployed: Deployment):
    run_id = build_after_change(deployed)
    tree = contents(deployed.project / "data")
    backups = deployed.folder / "backups"
    for number in (1, 2):
        deployed.start("backup")  # until it is well, as it is once there is one
        wait_for(lambda number=number: len([*backups.glob("20*")]) == number, "a backup")
        assert deployed.stop("backup") == []
    first, second = sorted(backups.iterdir())
    assert deployed.run("restore", second.name).returncode == 1, "services go on"

    deployed.stop(*SERVICES)
    deployed.postgres.ask("DROP DATABASE tokflow", "postgres")
    deployed.postgres.ask("CREATE DATABASE tokflow", "postgres")
    shutil.rmtree(deployed.project / "data")
    (deployed.project / "data").mkdir()
    restored = deployed.run("restore", second.name)

    assert restored.returncode == 0, restored.stderr
    assert contents(deployed.project / "data") == tree
    assert (first / MANIFEST).stat().st_ino == (second / MANIFEST).stat().st_ino
    deployed.files = FILES  # from here on runs have containers
    deployed.start(*SERVICES)
    assert runs(deployed)[run_id]["status"] == "SUCCESS"


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_run_has_a_container_of_its_own_with_limits_of_its_own(deployed: Deployment):
    made = (deployed.project / MANIFEST).stat().st_mtime_ns
    run_id = build(deployed)  # of nothing, for what was restored is up to date

    [container] = deployed.docker.containers
    assert container["Image"] == "tokflow"
    assert container["Labels"]["dagster/run_id"] == run_id
    assert container["Cmd"][:3] == ["dagster", "api", "execute_run"]
    assert "TOKFLOW_ALERT_WEBHOOK" not in str(container["Env"])
    host = container["HostConfig"]
    assert host["Memory"] == 8 * 1024**3
    assert (host["ReadonlyRootfs"], host["AutoRemove"], host["Init"]) == (True, True, True)
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true"])
    assert host["NetworkMode"] == "tokflow_inside"
    assert [network for network, _ in deployed.docker.networks] == ["tokflow_outside"]
    assert "tokflow_store:/srv/project/data" in str(host["Binds"])
    assert (deployed.project / MANIFEST).stat().st_mtime_ns == made, "the restored one was not used"


def test_a_run_in_a_container_is_stopped_from_the_web_ui_and_a_killed_one_is_noticed(
    deployed: Deployment, monkeypatch: pytest.MonkeyPatch
):
    (deployed.project / "data/large/a.txt").write_text("another\n" * 2_000_000)
    [stopped, killed] = [str(launch(deployed, "slow_build")["run"]["runId"]) for _ in range(2)]
    wait_for(lambda: runs(deployed)[stopped]["status"] == "STARTED", "start")

    deployed.ask(TERMINATE, run=stopped)
    wait_for(lambda: runs(deployed)[stopped]["status"] == "CANCELED", "cancellation")
    wait_for(lambda: runs(deployed)[killed]["status"] == "STARTED", "start")
    deployed.docker.kill(list(deployed.docker.processes)[-1])

    for name, value in deployed.environment("daemon").items():
        monkeypatch.setenv(name, value)
    with DagsterInstance.from_config(str(deployed.state.parent)) as instance:
        run = instance.get_run_by_id(killed)
        assert run
        assert instance.run_launcher.check_run_worker_health(run).status.value == "FAILED"


def test_services_write_to_their_volumes_alone(deployed: Deployment):
    assert deployed.written() == []


def test_every_service_ends_when_it_is_told_to(deployed: Deployment):
    assert deployed.stop(*reversed(SERVICES)) == []

"""Dagster's instance of the project: where it is, runs that were lost, and old runs."""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import instance as instance_module
from tokflow.components import open_instance
from tokflow.components.instance import (
    PROCESS_TAG,
    end_lost_runs,
    find_old_runs,
    process_tags,
    remove_runs,
)


def test_the_instance_is_the_one_of_the_project_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tmp_path / "project"
    project.mkdir()
    (project / "dagster.yaml").write_text("storage: {sqlite: {base_dir: state}}\n")
    monkeypatch.setattr("tokflow.components.instance.project_root", lambda: project)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)

    with open_instance() as instance:
        instance.add_dynamic_partitions("files", ["a"])

    assert (project / "state" / "history" / "runs.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["project"]
    assert dict(os.environ) == before
    with open_instance() as instance:
        assert list(instance.get_dynamic_partitions("files")) == ["a"]


@dg.job
def job() -> None: ...


LOST = {
    "NOT_STARTED": "FAILURE",
    "STARTED": "FAILURE",
    "CANCELING": "CANCELED",
    "SUCCESS": "SUCCESS",
}
"""Statuses of runs, and those that they have once they were found to be lost."""


def are_ended(tags_of: Callable[[str], dict[str, str]], *hosts: str) -> bool:
    """Return whether runs, one of each status, are ended as lost ones."""
    ids = {status: str(uuid.uuid4()) for status in LOST}
    with dg.DagsterInstance.ephemeral() as instance:
        for status, run in ids.items():
            now = dg.DagsterRunStatus(status)
            instance.create_run_for_job(job, run_id=run, tags=tags_of(run), status=now)

        end_lost_runs(instance, hosts)

        statuses = {run.run_id: run.status.value for run in instance.get_runs()}
    found = {status: statuses[run] for status, run in ids.items()}
    assert found in (LOST, {status: status for status in LOST})
    return found == LOST


GONE = {
    "machine": lambda: "before",
    "boot": lambda: "before",
    "socket.gethostname": lambda: "another",
    "os.getpid": lambda: 2**22 + 1,  # no process has it
}


@pytest.mark.parametrize(
    ("gone", "is_copy", "is_ended"),
    [
        ([], False, False),
        (["os.getpid"], False, True),
        (["os.getpid"], True, False),  # begun again, not yet by a process
        (["boot", "machine"], False, True),
        (["machine", "os.getpid"], False, False),  # another container that has the host's name
        (["socket.gethostname", "boot", "machine"], False, False),
    ],
)
def test_runs_whose_process_was_killed_are_ended(gone: list[str], is_copy: bool, is_ended: bool):
    def tags_of(run: str) -> dict[str, str]:
        with pytest.MonkeyPatch.context() as patch:
            for name in gone:
                patch.setattr(f"{instance_module.__name__}.{name}", GONE[name])
            return process_tags("another" if is_copy else run)

    assert are_ended(tags_of) is is_ended


def launched(host: str) -> dict[str, str]:
    return {".dagster/grpc_info": json.dumps({"host": host, "port": 4000})}


@pytest.mark.parametrize(
    ("tags", "is_ended"),
    [
        ({}, False),
        (launched("code"), True),
        (launched("another"), False),
        ({PROCESS_TAG: "{run} 5c1e boot machine 7"}, True),
        ({PROCESS_TAG: "{run} another boot machine 7"}, False),
        ({PROCESS_TAG: "copied-from-a-run 5c1e boot machine 7"}, False),
    ],
)
def test_runs_of_a_container_that_is_gone_are_ended(tags: dict[str, str], is_ended: bool):
    def tags_of(run: str) -> dict[str, str]:
        return {name: of.replace("{run}", run) for name, of in tags.items()}

    assert are_ended(tags_of, "code", "5c1e") is is_ended


@dg.op
def tell(context: dg.OpExecutionContext) -> None:
    partition = context.run.tags.get("partition")
    if context.run.tags["event"] == "materialization":
        context.log_event(dg.AssetMaterialization("asset", partition=partition))
    if context.run.tags["event"] == "observation":
        context.log_event(dg.AssetObservation("asset", partition=partition))


@dg.job(executor_def=dg.in_process_executor)
def telling() -> None:
    tell()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield instance


def run(instance: dg.DagsterInstance, event: str = "none", **tags: str) -> str:
    return telling.execute_in_process(instance=instance, tags={"event": event, **tags}).run_id


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("event", ["materialization", "observation"])
def test_runs_with_the_latest_event_of_an_asset_or_a_partition_are_needed(
    event: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(instance_module, "AT_ONCE", 1)
    run(instance, event, partition="a")
    a, b = run(instance, event, partition="a"), run(instance, event, partition="b")
    run(instance, event)
    whole = run(instance, event)
    run(instance)

    old = find_old_runs(instance, before=now())

    assert old.needed == (whole, b, a)
    assert len(old.removable) == 3
    assert set(old.needed).isdisjoint(old.removable)


def test_runs_that_go_on_or_ended_later_are_not_old(instance: dg.DagsterInstance):
    ended = run(instance)
    started = str(uuid.uuid4())
    status = dg.DagsterRunStatus.STARTED
    instance.create_run_for_job(telling, run_id=started, status=status)

    assert find_old_runs(instance, before=now()).removable == (ended,)
    assert find_old_runs(instance, before=now() - timedelta(hours=1)).removable == ()


def test_a_run_is_removed_with_its_events_and_what_it_printed(tmp_path: Path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        gone, kept = run(instance), run(instance)
        paths = [tmp_path / "storage" / of / "compute_logs" for of in (gone, kept)]
        assert all(path.is_dir() for path in paths)

        remove_runs(instance, [gone])

        assert [of.run_id for of in instance.get_runs()] == [kept]
        assert instance.all_logs(gone) == []
        assert [path.exists() for path in paths] == [False, True]


SETTINGS = Path(__file__).parents[2] / "dagster.yaml"


@pytest.mark.parametrize("folder", ["project", "elsewhere"])
def test_with_dagster_home_all_state_is_in_it_from_any_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("project", "elsewhere"):
        (tmp_path / name).mkdir()
    shutil.copy(SETTINGS, tmp_path / "project")
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "project"))

    with open_instance() as instance:
        instance.add_dynamic_partitions("files", ["a"])
        folders = [
            instance.compute_log_manager.get_captured_local_path(["key"], "out"),
            instance.storage_directory(),
        ]

    assert all(path.startswith(f"{tmp_path}/project/.dagster/") for path in folders)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [".dagster", "dagster.yaml"]


def test_without_it_state_is_beside_the_dagster_yaml_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copy(SETTINGS, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.add_dynamic_partitions("files", ["a"])

    assert (tmp_path / ".dagster/history").is_dir()

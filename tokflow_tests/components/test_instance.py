"""Dagster's instance of the project."""

import os
import uuid
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import instance as instance_module
from tokflow.components import open_instance
from tokflow.components.instance import end_lost_runs, process_tags


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


def test_dagster_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))

    with open_instance() as instance:
        assert instance.root_directory == str(tmp_path)


@dg.job
def job() -> None: ...


GONE = {
    "machine": lambda: "before",
    "boot": lambda: "before",
    "socket.gethostname": lambda: "another",
    "os.getpid": lambda: 2**22 + 1,  # no process has it
}


@pytest.mark.parametrize(
    ("status", "ended"),
    [("NOT_STARTED", "FAILURE"), ("STARTED", "FAILURE"), ("CANCELING", "CANCELED")],
)
@pytest.mark.parametrize(
    ("gone", "is_ended"),
    [
        ([], False),
        (["os.getpid"], True),
        (["boot", "machine"], True),
        (["machine"], False),  # another container that has the host's name
        (["socket.gethostname", "boot", "machine"], False),
    ],
)
def test_runs_whose_process_was_killed_are_ended(
    gone: list[str], is_ended: bool, status: str, ended: str, monkeypatch: pytest.MonkeyPatch
):
    for name in gone:
        monkeypatch.setattr(f"{instance_module.__name__}.{name}", GONE[name])
    run_id = str(uuid.uuid4())
    tags = process_tags(run_id)
    monkeypatch.undo()
    with dg.DagsterInstance.ephemeral() as instance:
        now = dg.DagsterRunStatus(status)
        instance.create_run_for_job(job, run_id=run_id, tags=tags, status=now)
        instance.create_run_for_job(job, tags=tags, status=now)  # begun again, not yet by a process

        end_lost_runs(instance)

        statuses = {run.run_id == run_id: run.status.value for run in instance.get_runs()}
        assert statuses == {True: ended if is_ended else status, False: status}

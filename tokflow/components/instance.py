"""Dagster's instance of the project: the history that `dagster dev` keeps there."""

import os
import socket
from collections.abc import Iterator
from contextlib import chdir, contextmanager

import dagster as dg

from tokflow.pipeline.declarations.project import project_root, state_home
from tokflow.store.atomic import boot, is_alive, machine

PROCESS_TAG = "tokflow/process"
"""On a build: its run, and the process that does it. Dagster's daemon watches no processes but
those of Docker and Kubernetes."""

NOT_ENDED = [
    status
    for status in dg.DagsterRunStatus
    if status.value not in ("SUCCESS", "FAILURE", "CANCELED")
]
"""Statuses of a run that is queued or under way."""


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Yield the instance that `dagster dev` uses when it is started in the project root.

    That is the one in DAGSTER_HOME if it is set, else the one that the project's dagster.yaml
    describes; its relative folders start at the project root, which is the current folder
    meanwhile. Where no dagster.yaml says where the state is kept, it is kept in .dagster.
    """
    if os.environ.get("DAGSTER_HOME"):
        with dg.DagsterInstance.get() as instance:
            yield instance
        return
    root = project_root()
    home = state_home(root)
    home.mkdir(exist_ok=True)
    with chdir(root), dg.DagsterInstance.from_config(os.fspath(home)) as instance:
        yield instance


def process_tags(run_id: str) -> dict[str, str]:
    """Return the tag that says that this process does a run; on a copy of the run it is void."""
    return {PROCESS_TAG: f"{run_id} {socket.gethostname()} {boot()} {machine()} {os.getpid()}"}


def end_killed_runs(instance: dg.DagsterInstance) -> None:
    """End runs that say they go on though their process, of this host, has been killed: as failed
    ones but for those that somebody wanted to cancel."""
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_ENDED)):
        match run.tags.get(PROCESS_TAG, "").split():
            case [run.run_id, host, booted, where, number] if host == socket.gethostname():
                if booted != boot() or (where == machine() and not is_alive(int(number))):
                    is_canceled = run.status is dg.DagsterRunStatus.CANCELING
                    end = (
                        instance.report_run_canceled if is_canceled else instance.report_run_failed
                    )
                    end(run, "The process of this run was killed.")

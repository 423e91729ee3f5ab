"""Dagster's instance of the project: the history that `dagster dev` keeps there."""

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager

import dagster as dg

from tokflow.build.project import project_root, state_home
from tokflow.store.atomic import is_alive, machine

PROCESS_TAG = "tokflow/process"
"""On a run that no daemon watches: the machine and process that does it."""


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


def this_process() -> str:
    """Return what names this process, and no other while it lives."""
    return f"{machine()} {os.getpid()}"


def end_killed_runs(instance: dg.DagsterInstance) -> None:
    """Let runs fail that say they go on though their process, of this machine, has been killed."""
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
        where, _, number = run.tags.get(PROCESS_TAG, "").partition(" ")
        if where == machine() and not is_alive(int(number)):
            instance.report_run_failed(run, "The process of this run was killed.")

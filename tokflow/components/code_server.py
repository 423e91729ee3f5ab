"""Dagster's code server in a container of its own: `python -m tokflow.components.code_server`.

A container that ends takes its runs with it, and nobody tells the history: the runs would seem to
go on for ever, and all others would wait for them.
"""

import json
import os
import socket
import sys
from collections.abc import Collection

import dagster as dg

from tokflow.components.instance import NOT_ENDED, PROCESS_TAG, open_instance

HOST_VARIABLE = "TOKFLOW_CODE_HOST"
"""Has the name by which web server and daemon reach this server."""

LAUNCHED_TAG = ".dagster/grpc_info"
"""On a run that was launched: the code server that it runs in."""


def main() -> None:
    """End what an earlier container of these names left, and become the code server.

    Arguments: those of `dagster code-server start`.
    """
    with open_instance() as instance:
        end_runs_of({socket.gethostname(), os.environ.get(HOST_VARIABLE, "")}, instance)
    command = [sys.executable, "-m", "dagster", "code-server", "start", *sys.argv[1:]]
    os.execv(sys.executable, [*command, "--inject-env-vars-from-instance"])


def end_runs_of(hosts: Collection[str], instance: dg.DagsterInstance) -> None:
    """End all runs that say they go on in processes of a host of these names: as failed ones, which
    Dagster's daemon starts again, but for those that somebody wanted to cancel.

    For a host none of whose processes is left, as of a container that is starting.
    """
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_ENDED)):
        server = json.loads(run.tags.get(LAUNCHED_TAG, "{}")).get("host")
        process_run, process = [*run.tags.get(PROCESS_TAG, "").split(), "", ""][:2]
        if server in hosts or (process_run == run.run_id and process in hosts):
            is_canceled = run.status is dg.DagsterRunStatus.CANCELING
            end = instance.report_run_canceled if is_canceled else instance.report_run_failed
            end(run, "The container of this run has ended.")


if __name__ == "__main__":
    main()

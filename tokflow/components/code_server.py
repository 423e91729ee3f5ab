"""Dagster's code server in a container of its own: `python -m tokflow.components.code_server`.

A container that ends takes its runs with it, and nobody tells the history: the runs would seem to
go on for ever, and all others would wait for them.
"""

import os
import socket
import sys

from tokflow.components.instance import end_lost_runs, open_instance

HOST_VARIABLE = "TOKFLOW_CODE_HOST"
"""Has the name by which web server and daemon reach this server."""


def main() -> None:
    """End what an earlier container of these names left, and become the code server.

    Arguments: those of `dagster code-server start`.
    """
    with open_instance() as instance:
        end_lost_runs(instance, {socket.gethostname(), os.environ.get(HOST_VARIABLE, "")} - {""})
    command = [sys.executable, "-m", "dagster", "code-server", "start", *sys.argv[1:]]
    os.execv(sys.executable, [*command, "--inject-env-vars-from-instance"])


if __name__ == "__main__":
    main()

"""Dagster's code servers: one that loads its code anew because a run asks for it, and one in a
container of its own, `python -m tokflow.components.code_server`.

A container that ends takes its runs with it, and nobody tells the history: the runs would seem to
go on for ever, and all others would wait for them.
"""

import os
import socket
import sys
from pathlib import Path

import dagster as dg

from tokflow.components.instance import end_lost_runs, open_instance

API = "/api.DagsterApi"
"""Prefix of the methods of a code server."""

HOST_VARIABLE = "TOKFLOW_CODE_HOST"
"""Has the name by which web server and daemon reach this server."""

RELOAD_SECONDS = 180.0
"""Time that a code server has to load its code."""


def reload_code(run: dg.DagsterRun) -> bool:
    """Let the code server that a run was launched from load its code anew; return whether it did.

    Its runs go on, and web server and daemon follow within a second. Dagster has no function for
    it that is public; its pages send this message. A server that a web server or a daemon has begun
    for itself alone loads nothing anew.
    """
    import grpc  # type: ignore[import-untyped]

    of_job = run.remote_job_origin
    server = of_job.repository_origin.code_location_origin if of_job else None
    path, host, port = (getattr(server, of, None) for of in ("socket", "host", "port"))
    if not path and not port:
        return False
    address = f"unix:{Path(path).absolute()}" if path else f"{host}:{port}"
    with grpc.insecure_channel(address) as channel:
        id_of, reload = map(channel.unary_unary, [f"{API}/GetServerId", f"{API}/ReloadCode"])
        try:
            before = id_of(b"", timeout=RELOAD_SECONDS)
            reload(b"", timeout=RELOAD_SECONDS)
            return bool(id_of(b"", timeout=RELOAD_SECONDS) != before)
        except grpc.RpcError:
            return False


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

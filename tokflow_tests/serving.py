"""Servers of Dagster's web UI in tests: their ports, and what they answer."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tokflow_tests.raw.servers import QuietHandler, running

WAIT_SECONDS = 300
"""Enough for a machine with ten times as much to do as it has cores; only a failure takes it."""


@contextmanager
def webhook() -> Iterator[tuple[str, list[Any]]]:
    """Serve a webhook on loopback; yield its URL and the JSON that it has got."""
    told: list[Any] = []

    class Webhook(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 (http.server's name)
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    with running(Webhook) as server:
        yield f"http://127.0.0.1:{server.server_port}/", told


def end(process: "subprocess.Popen[Any]") -> None:
    """End a process that began a session, as Ctrl-C would, and whatever it started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(timeout=30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(
    url: str, query: str, variables: Mapping[str, Any] | None = None, **headers: str
) -> dict[str, Any]:
    """Return the data that the GraphQL of a web server answers."""
    body = json.dumps({"query": query, "variables": variables or {}}).encode()
    own = {"Content-Type": "application/json", **headers}
    with urlopen(Request(f"{url}/graphql", body, own), timeout=60) as answer:
        document = json.load(answer)
    assert not document.get("errors"), document["errors"]
    return document["data"]


def wait_for(find: Callable[[], Any], what: str) -> Any:
    """Return what is found, as soon as it is."""
    until = time.monotonic() + WAIT_SECONDS
    while not (found := find()):
        if time.monotonic() > until:
            pytest.fail(f"{what}: not within {WAIT_SECONDS} s")
        time.sleep(0.25)
    return found

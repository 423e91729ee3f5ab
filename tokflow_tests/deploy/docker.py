"""A stand-in for Docker: the part of its API that runs in containers need, by processes."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

VERSION = {"ApiVersion": "1.47", "MinAPIVersion": "1.24", "Version": "27.0.0"}


class Docker:
    """Serves containers on loopback. One that is started is a process with its command."""

    def __init__(
        self, environment: Callable[[Mapping[str, str]], dict[str, str]], project: Path, log: Path
    ) -> None:
        """`environment` gives the variables of a process, from those of its container. `project` is
        the working folder of the image, `log` gets what processes print."""
        self.containers: list[dict[str, Any]] = []
        """What was asked for at each creation."""
        self.networks: list[tuple[str, str]] = []
        """A network and the container that was connected to it."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment, self._project, self._log = environment, project, log
        docker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._answer(json.loads(body or b"{}"))

            def _answer(self, body: dict[str, Any]) -> None:
                path = self.path.split("?")[0].strip("/").split("/")
                status, answer = docker.answer(path if path[0] == "version" else path[1:], body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"tcp://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: list[str], body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the JSON for a path without the version."""
        match path:
            case ["version"]:
                return 200, VERSION
            case ["containers", "create"]:
                self.containers.append(body)
                return 201, {"Id": f"{len(self.containers):064x}", "Warnings": []}
            case ["containers", name, "json"]:
                return 200, {"Id": name, "State": {"Status": self._status(name)}}
            case ["containers", name, "start"]:
                self._start(name)
                return 204, {}
            case ["containers", name, "stop"]:
                self._end(name, signal.SIGTERM)
                return 204, {}
            case ["networks", name]:
                return 200, {"Id": name, "Name": name}
            case ["networks", name, "connect"]:
                self.networks.append((name, body["Container"]))
                return 200, {}
        return 404, {"message": f"nothing at {'/'.join(path)}"}

    def kill(self, name: str) -> None:
        """End a container as the limit of its memory does."""
        self._end(name, signal.SIGKILL)

    def close(self) -> None:
        """End all containers and the server."""
        for name in self.processes:
            self.kill(name)
        self._server.shutdown()
        self._server.server_close()

    def _start(self, name: str) -> None:
        container = self.containers[int(name, 16) - 1]
        with self._log.open("ab") as log:
            self.processes[name] = subprocess.Popen(
                container["Cmd"],
                cwd=self._project,
                env=self._environment(dict(of.split("=", 1) for of in container["Env"])),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self.processes[name]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        process.wait(timeout=60)

    def _status(self, name: str) -> str:
        if name not in self.processes:
            return "created"
        return "running" if self.processes[name].poll() is None else "exited"

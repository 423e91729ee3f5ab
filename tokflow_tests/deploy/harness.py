"""The services of compose.yaml as processes of this machine, and a PostgreSQL of its own.

Containers become processes, their names loopback, their folders folders of a temporary one.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tokflow_tests.deploy.compose import DEPLOY, SECRETS, read_compose
from tokflow_tests.serving import ask, free_port, wait_for

OWN_CADDY = str(DEPLOY.parent / ".venv-deploy/usr/bin")
"""Where `make test-deploy` puts Debian's."""


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Postgres:
    """A PostgreSQL of Debian's on loopback, by a user who is not root."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._user = "postgres" if os.geteuid() == 0 else None
        (folder / "password").write_text(SECRETS["TOKFLOW_POSTGRES_PASSWORD"])
        if self._user:
            for path in (folder, folder / "password"):
                shutil.chown(path, self._user)
        own = ("--username=tokflow", "--auth=scram-sha-256", f"--pwfile={folder}/password")
        self._run(_program("initdb"), *own, "--no-sync", f"--pgdata={folder}/data")

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c fsync=off"
        options += f" -c unix_socket_directories={self._folder}"
        log = f"--log={self._folder}/log"  # else the server keeps the pipe of what is captured
        self._run(_program("pg_ctl"), *self._data, log, "--wait", f"--options={options}", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run(_program("pg_ctl"), *self._data, f"--mode={mode}", "stop")

    def ask(self, query: str, database: str = "tokflow") -> list[Any]:
        """Return the rows that a query gives, if any."""
        own = {"user": "tokflow", "password": SECRETS["TOKFLOW_POSTGRES_PASSWORD"]}
        connection = psycopg2.connect(host="127.0.0.1", port=self.port, dbname=database, **own)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    @property
    def _data(self) -> list[str]:
        return [f"--pgdata={self._folder}/data"]

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command,
            cwd=self._folder,
            user=self._user,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def _program(name: str) -> str:
    """Return a program of PostgreSQL's server, which Debian has in no PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([os.environ["PATH"], *map(str, places)])
    found = shutil.which(name, path=path)
    assert found, f"{name} is not there: apt-get install postgresql"
    return found


class Deployment:
    """Services of compose.yaml over a project in a folder."""

    def __init__(self, folder: Path, project: Path) -> None:
        self.folder, self.project = folder, project
        self.credentials: dict[str, str] = {}
        """What credentials.env holds."""
        self.told: list[Any] = []
        """Messages that its webhook has got."""
        self.web_port, self._code_port = free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._home = folder / "home"
        self._home.mkdir()
        for name in ("dagster.yaml", "workspace.yaml"):
            shutil.copy(DEPLOY / name, self._home)
        (folder / "postgres").mkdir()
        self.postgres = Postgres(folder / "postgres")
        self.postgres.start()
        self.postgres.ask("CREATE DATABASE tokflow", "postgres")

    @property
    def state(self) -> Path:
        """The volume with the output of runs."""
        return self._home / ".dagster"

    def start(self, *names: str, **variables: str) -> None:
        """Start services as compose.yaml says, each once the ones before it are healthy."""
        services = read_compose({**SECRETS, **variables})["services"]
        for name in names:
            service = services[name]
            with (self.folder / f"{name}.log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [self._here(word) for word in service["command"]],
                    cwd=self.project,
                    env=self._environment(service),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if "healthcheck" in service:
                wait_for(lambda name=name, of=service: self._is_healthy(name, of), name)

    def stop(self, *names: str, kill: bool = False) -> list[str]:
        """Stop services, as `docker compose stop` or as a machine that fails does; return those
        that had to be killed."""
        late = []
        services = read_compose(SECRETS)["services"]
        for name in names:
            process = self._processes.pop(name)
            own = getattr(signal, services[name].get("stop_signal", "SIGTERM"))
            process.send_signal(signal.SIGKILL if kill else own)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                late.append(name)
            with suppress(ProcessLookupError):  # what is left in a container ends with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return late

    @contextmanager
    def proxy(self) -> Iterator[int]:
        """Run Caddy with the Caddyfile, without TLS and on loopback alone; yield its port."""
        caddy = shutil.which("caddy") or shutil.which("caddy", path=OWN_CADDY)
        if caddy is None:
            pytest.skip("no Caddy: `make test-deploy` gets Debian's")
        port = free_port()
        config = (DEPLOY / "Caddyfile").read_text()
        of_loopback = config.replace("admin off", "admin off\n\tdefault_bind 127.0.0.1")
        (self.folder / "Caddyfile").write_text(of_loopback)
        own = {**SECRETS, "TOKFLOW_SITE": f"http://localhost:{port}"}
        own |= {"TOKFLOW_WEBSERVER": f"127.0.0.1:{self.web_port}", "HOME": str(self.folder)}
        with (self.folder / "proxy.log").open("wb") as log:
            command = [caddy, "run", "--config", str(self.folder / "Caddyfile")]
            process = subprocess.Popen(command, env=own, stdout=log, stderr=log)
        try:
            wait_for(lambda: is_open(port), "proxy")
            yield port
        finally:
            process.terminate()
            process.wait(timeout=30)

    def close(self) -> None:
        """End everything."""
        self.stop(*self._processes, kill=True)
        self.postgres.stop("immediate")

    def log(self, name: str) -> str:
        """Return what a service has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def ask(self, query: str, **variables: Any) -> Any:
        """Return what the web server's GraphQL answers."""
        return ask(f"http://127.0.0.1:{self.web_port}", query, variables)

    def _is_healthy(self, name: str, service: Any) -> bool:
        log = self.log(name)[-4_000:]
        assert self._processes[name].poll() is None, f"{name} has ended: {log}"
        kind, *command = service["healthcheck"]["test"]
        assert kind == "CMD"
        done = subprocess.run(
            [self._here(word) for word in command],
            cwd=self.project,
            env=self._environment(service),
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def _environment(self, service: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables of a service and of its image, and nothing else."""
        own = {**service["environment"], **(self.credentials if "env_file" in service else {})}
        image = {"DAGSTER_HOME": str(self._home), "DAGSTER_DISABLE_TELEMETRY": "1"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        outside = {"PATH": path, "HOME": str(self._home), "PYTHONPATH": str(DEPLOY.parent)}
        return {**outside, **image, **{name: self._here(of) for name, of in own.items()}}

    def _here(self, text: str) -> str:
        """Return a word of a command, or a value, for this machine."""
        here = {
            "0.0.0.0": "127.0.0.1",
            "@postgres:5432": f"@127.0.0.1:{self.postgres.port}",
            ":3000": f":{self.web_port}",
            "/srv/dagster": str(self._home),
        }
        whole = {"code": "127.0.0.1", "4000": str(self._code_port), "3000": str(self.web_port)}
        for there, of in here.items():
            text = text.replace(there, of)
        return whole.get(text, text)


@contextmanager
def deployment(project: Path) -> Iterator[Deployment]:
    """Yield a deployment with its PostgreSQL running and no service yet."""
    # Not in pytest's folder, which PostgreSQL's user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="tokflow-deploy-"))
    folder.chmod(0o755)
    try:
        deployed = Deployment(folder, project)
        try:
            yield deployed
        finally:
            deployed.close()
    finally:
        shutil.rmtree(folder)

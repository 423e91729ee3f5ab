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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tokflow_tests.deploy.compose import DEPLOY, FILES, SECRETS, read_compose
from tokflow_tests.deploy.docker import Docker
from tokflow_tests.serving import WAIT_SECONDS, ask, free_port, wait_for

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
        """`project` has all that it reads and builds in `data`, a volume."""
        self.folder, self.project = folder, project
        self.credentials: dict[str, str] = {}
        """What credentials.env holds."""
        self.told: list[Any] = []
        """Messages that its webhook has got."""
        self.web_port, self._code_port = free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._home = folder / "home"
        for name in ("home", "user", "backups", "tmp", "postgres"):
            (folder / name).mkdir()
        for name in ("dagster.yaml", "workspace.yaml"):
            shutil.copy(DEPLOY / name, self._home)
        self.docker = Docker(self.in_container, project, folder / "containers.log")
        """Takes the place of Docker, for services of `files[1]`."""
        self.files: Sequence[str] = FILES[:1]
        """The compose files that say what is started."""
        self._started = time.time()
        self.postgres = Postgres(folder / "postgres")
        self.postgres.start()
        self.postgres.ask("CREATE DATABASE tokflow", "postgres")

    @property
    def state(self) -> Path:
        """The volume with the output of runs."""
        return self._home / ".dagster"

    def start(self, *names: str, **variables: str) -> None:
        """Start services as the compose files say, each once the ones before it are healthy."""
        for name, service in self._services(*names, **variables).items():
            for volume in service.get("volumes", ()):
                if volume.startswith("./"):
                    source, target, _ = volume.split(":")
                    shutil.copy(DEPLOY / source, self._here(target))
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
        for name, service in self._services(*names).items():
            process = self._processes.pop(name)
            own = getattr(signal, service.get("stop_signal", "SIGTERM"))
            process.send_signal(signal.SIGKILL if kill else own)
            try:
                process.wait(timeout=WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                late.append(name)
            with suppress(ProcessLookupError):  # what is left in a container ends with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return late

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a service once, as `docker compose run` does, and return how it ended."""
        service = self._services(name)[name]
        command = [self._here(word) for word in service["entrypoint"]]
        return subprocess.run(
            [*command, *arguments],
            cwd=self.project,
            env=self._environment(service),
            capture_output=True,
            text=True,
            check=False,
        )

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service."""
        return self._environment(self._services(name)[name])

    def written(self) -> list[str]:
        """Return the files outside of all volumes that services have written, which containers
        with a root to read could not have."""
        volumes = [self.state, self.folder / "user/.cache", self.project / "data"]
        roots = [self._home, self.folder / "user", self.project]
        return [
            str(path)
            for path in chain.from_iterable(root.rglob("*") for root in roots)
            if path.is_file() and path.stat().st_mtime > self._started
            if not any(path.is_relative_to(volume) for volume in volumes)
            if path.suffix != ".pyc" and path.name != "dagster.yaml"
        ]

    def in_container(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a container of the image with these variables."""
        image = {"DAGSTER_HOME": str(self._home), "DAGSTER_DISABLE_TELEMETRY": "1"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        installed = f"{DEPLOY.parent}{os.pathsep}{self.project}"  # by pip, in an image
        outside = {"PATH": path, "PYTHONPATH": installed}
        outside |= {"HOME": str(self.folder / "user"), "TMPDIR": str(self.folder / "tmp")}
        here = {name: self._here(value) for name, value in variables.items()}
        return {**outside, **image, "MPLCONFIGDIR": str(self.folder / "tmp"), **here}

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
        self.docker.close()
        self.postgres.stop("immediate")

    def last_events(self, run_id: str) -> str:
        """Return the last events of a run, for the message of a test that fails."""
        events = self.postgres.ask(
            f"SELECT event FROM event_logs WHERE run_id = '{run_id}' ORDER BY id DESC LIMIT 8"
        )
        return "\n".join(event[:2_000] for [event] in events)

    def log(self, name: str) -> str:
        """Return what a service has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def ask(self, query: str, **variables: Any) -> Any:
        """Return what the web server's GraphQL answers."""
        return ask(f"http://127.0.0.1:{self.web_port}", query, variables)

    def _services(self, *names: str, **variables: str) -> dict[str, Any]:
        """Return services as the compose files declare them, in the order of the names."""
        services = read_compose({**SECRETS, **variables}, *self.files)["services"]
        return {name: services[name] for name in names}

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
        return self.in_container({name: str(value) for name, value in own.items()})

    def _here(self, text: str) -> str:
        """Return a word of a command, or a value, for this machine."""
        here = {
            "0.0.0.0": "127.0.0.1",
            "@postgres:5432": f"@127.0.0.1:{self.postgres.port}",
            ":3000": f":{self.web_port}",
            "tcp://docker:2375": self.docker.url,
            "tcp://docker-stop:2375": self.docker.url,
            "/srv/dagster": str(self._home),
            "/srv/project/data": str(self.project / "data"),
            "/srv/backups": str(self.folder / "backups"),
            "deploy/backup.py": str(DEPLOY / "backup.py"),
            "/tmp/pruned": str(self.folder / "tmp/pruned"),
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

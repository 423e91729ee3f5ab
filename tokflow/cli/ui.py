"""`tokflow ui`: Dagster's web UI and daemon, closed to pages of other sites."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.parse import urlsplit

import typer
import yaml

from tokflow.cli import set_by_default
from tokflow.cli.options import Json, ProjectFolder
from tokflow.cli.terminal import DONE, FAILED, print_error, print_json, shown_path
from tokflow.errors import ConfigError, TokflowError
from tokflow.formatting import viewer_command
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.pipeline.project import project_root, state_home

LOOPBACK = ("127.0.0.1", "localhost", "::1")

QUIET = {"telemetry": {"enabled": False}, "nux": {"enabled": False}}
"""Settings written if there is no dagster.yaml; without them pages load a script from
dagster.io."""

POLL_SECONDS = 0.2

STOP_SECONDS = 8.0
"""Seconds from the signal to end until a process is killed."""

FOREIGN_HOST = "tokflow.invalid"
"""Host name that the web server must refuse."""

RUN_DAEMON = (
    "from importlib.metadata import entry_points\n"
    "[daemon] = entry_points(group='console_scripts', name='dagster-daemon')\n"
    "daemon.load()()"
)


Host = Annotated[
    str, typer.Option(help="Address to listen on; it must be reachable from this machine only.")
]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")]

Expose = Annotated[
    bool,
    typer.Option(
        "--expose-without-login",
        help="Allow other addresses. The web UI has no login: anyone who reaches it can run code "
        "as you.",
    ),
]


def main(
    host: Host = "127.0.0.1",
    port: Port = 3000,
    expose: Expose = False,
    project: ProjectFolder = None,
    json: Json = False,
) -> int | None:
    """Serve the web UI of the project's code locations until it is interrupted.

    Raises: ConfigError if the web server is not installed, `host` is reachable from other machines
    without `expose`, or the port is taken.
    """
    if find_spec("dagster_webserver") is None:
        raise ConfigError(
            where="tokflow ui",
            expected="Dagster's web server, which comes with the extra ui",
            found="none installed",
            remedy="run `pip install 'dagster-tokflow[ui]'`; all other commands work without it",
        )
    if not (expose or host in LOOPBACK or _is_loopback(host)):
        raise ConfigError(
            where="--host",
            expected="an address that only this machine reaches, such as 127.0.0.1, since the web "
            "UI has no login and anyone who reaches it can run code as you",
            found=repr(host),
            remedy="use an SSH tunnel instead, or add --expose-without-login",
        )
    root = project_root()
    home = Path(os.environ.get("DAGSTER_HOME") or state_home(root))
    location = code_location(root)
    if json:
        print_json(
            {
                "url": url(host, port),
                "folder": str(root),
                "dagster_home": str(home),
                "code_location": location.name if location else "workspace.yaml",
            }
        )
        return None
    port = _free_port(host, port)
    settings = home / "dagster.yaml"
    if not (os.environ.get("DAGSTER_HOME") or settings.is_file()):
        home.mkdir(exist_ok=True)
        settings.write_text(yaml.safe_dump(QUIET))
    own = {"DAGSTER_DISABLE_TELEMETRY": "1", "DAGSTER_HOME": str(home)}
    environment = {name: of for name, of in os.environ.items() if name not in set_by_default} | own
    with chdir(root):
        return serve(location, host=host, port=port, environment=environment)


def _is_loopback(host: str) -> bool:
    from tokflow.components.webserver import is_loopback  # late: it takes a second

    return is_loopback(host)


def _free_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise ConfigError(
            where="--host and --port",
            expected="an address of this machine and a free port",
            found=f"{url(host, port)}: {error.strerror or error}",
            remedy="stop what is running there, or take a free port: --port 0",
        ) from error


def url(host: str, port: int) -> str:
    """Return the URL of the web UI on this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """Definitions that one code server loads."""

    name: str
    options: Sequence[str]
    """Options of `dagster code-server start` that name the definitions."""


def code_location(root: Path) -> CodeLocation | None:
    """Return the definitions that `dagster dev` loads in a project; None if workspace.yaml lists
    them.

    They are those that the project's pyproject.toml names, else its datasets.
    """
    pyproject = root / "pyproject.toml"
    tool = tomllib.loads(pyproject.read_text()).get("tool", {}) if pyproject.is_file() else {}
    of_dagster, project = tool.get("dagster", {}), tool.get("dg", {}).get("project", {})
    name = (of_dagster or project).get("code_location_name")
    option = "--module-name"
    if "module_name" in of_dagster:
        module = of_dagster["module_name"]
    elif project.get("autoload_defs"):
        option = "--autoload-defs-module-name"
        module = project.get("defs_module", f"{project['root_module']}.defs")
    elif project:
        module = f"{project['root_module']}.definitions"
        module = project.get("code_location_target_module", module)
    elif (root / "workspace.yaml").is_file():
        return None
    else:
        module = "tokflow.definitions"
    return CodeLocation(name or module, (option, module))


def serve(
    location: CodeLocation | None, *, host: str, port: int, environment: Mapping[str, str]
) -> int:
    """Run code server, web server and daemon until this process is told to end, or one of them
    ends; return the exit status.

    Web server and daemon share a code server, so that a reload in the UI reloads for both; without
    a location each loads what workspace.yaml says. When this returns, no process is left.
    """
    services = _Services(environment)
    with TemporaryDirectory(prefix="tokflow-ui-") as folder:
        try:
            services.run(location, Path(folder), host, port)
        except _EndedError as ended:
            print_error(str(ended))
            return FAILED
        finally:
            services.stop()
    return DONE


class _EndedError(Exception):
    """A process of the web UI ended by itself."""


class _Services:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._is_told_to_end = False
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._handlers = {number: signal.getsignal(number) for number in numbers}
        for number, handler in self._handlers.items():
            if number != signal.SIGHUP or handler != signal.SIG_IGN:  # no nohup
                signal.signal(number, self._end)

    def _end(self, number: int, frame: object) -> None:
        self._is_told_to_end = True

    def run(self, location: CodeLocation | None, folder: Path, host: str, port: int) -> None:
        """Start the processes in order of their needs, and print the URL."""
        workspace = Path("workspace.yaml")
        if location is not None:
            workspace, code = folder / "workspace.yaml", folder / "code"
            server = {"socket": str(code), "location_name": location.name}
            workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
            options = ["--socket", str(code), "--location-name", location.name, *location.options]
            command = ["-m", "dagster", "code-server", "start", "--log-level", "warning", *options]
            self._start("code server", [*command, "--inject-env-vars-from-instance"])
            if not self._wait(code.exists):
                return
        target = ["-w", str(workspace), "--code-server-log-level", "warning"]
        listen = ["-h", host, "-p", str(port)]
        web = ["-m", "tokflow.components.webserver", host]
        self._start("web server", [*web, *listen, "--dagster-log-level", "warning", *target])
        self._start("daemon", ["-c", RUN_DAEMON, "run", "--log-level", "warning", *target])
        address = url(host, port)
        if self._wait(lambda: _is_guarded(address)):
            print(f"Dagster's web UI: {address} (Ctrl-C ends it)")
            _print_pages()
            self._wait(lambda: False)

    def stop(self) -> None:
        """End all processes and their children, as Ctrl-C would.

        A run that goes on is interrupted, so that it has failed in the history, too.
        """
        until = time.monotonic() + STOP_SECONDS
        processes = self._processes.values()
        for process in processes:
            _signal(process, signal.SIGINT)
        while any(_signal(process, 0) for process in processes) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        for process in processes:
            _signal(process, signal.SIGKILL)
            process.wait()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        # In a session of its own, so that Ctrl-C reaches this process alone, which ends the others
        # in their order, and with it whatever they have started.
        self._processes[name] = subprocess.Popen(
            [sys.executable, *arguments], env=self._environment, start_new_session=True
        )

    def _wait(self, until: Callable[[], bool]) -> bool:
        """Wait until `until` holds and return True; False as soon as this process is to end."""
        while not self._is_told_to_end:
            for name, process in self._processes.items():
                if (status := process.poll()) is not None:
                    raise _EndedError(
                        f"the {name} of the web UI ended by itself, with status {status}: what it "
                        "printed says why; the rest of the web UI was stopped"
                    )
            if until():
                return True
            time.sleep(POLL_SECONDS)
        return False


def _print_pages() -> None:
    """Print where the report of each dataset is, and the command that makes a viewer of each
    export."""
    from tokflow.views.report_page import REPORT_PATH

    for name, declaration in list_declared().items():
        with suppress(TokflowError):
            dataset = load_declared(declaration)
            store, report = dataset.store, dataset.folder / REPORT_PATH
            if report.is_file():
                print(f"report of {name}: {shown_path(report, store)}")
            for of in dataset.exports:
                if (folder := dataset.folder / "exports" / of.name).is_dir():
                    print(f"viewer of {name}: {viewer_command(shown_path(folder, store))}")
    sys.stdout.flush()


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a process and its children; return whether any of them is left."""
    process.poll()  # takes note of its end
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _is_guarded(address: str) -> bool:
    """Return whether the web server answers, and refuses requests with a foreign Host header."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=5)
    try:
        connection.request("GET", "/server_info", headers={"Host": FOREIGN_HOST})
        status = connection.getresponse().status
    except OSError:
        return False
    finally:
        connection.close()
    if status != http.client.FORBIDDEN:
        raise _EndedError(
            f"the web server answers pages of other sites (status {status}), as this version of "
            "Dagster does not start it as tokflow expects: use the one in constraints.txt"
        )
    return True

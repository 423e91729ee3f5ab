"""Processes of the web UI: code server, web server and daemon, from their start to their end."""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import yaml

from tokflow.cli.terminal import DONE, FAILED, print_error

POLL_SECONDS = 0.2

STOP_SECONDS = 8.0
"""What is still there so long after it was told to end is killed."""

ELSEWHERE = "tokflow.invalid"
"""A name that leads nowhere, by which the web server must not let itself be called."""

RUN_DAEMON = (
    "from importlib.metadata import entry_points\n"
    "[daemon] = entry_points(group='console_scripts', name='dagster-daemon')\n"
    "daemon.load()()"
)


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """Definitions that one code server loads."""

    name: str
    options: Sequence[str]
    """Those of `dagster code-server start` that name them."""


def serve(
    location: CodeLocation | None,
    *,
    host: str,
    port: int,
    url: str,
    environment: Mapping[str, str],
) -> int:
    """Run the processes until this one is told to end, or one of them ends; return the exit status.

    Web server and daemon share a code server, so that a reload in the UI reloads for both; without
    a location each loads what workspace.yaml says. When this returns, no process is left.
    """
    services = _Services(environment)
    with TemporaryDirectory(prefix="tokflow-ui-") as folder:
        try:
            services.run(location, Path(folder), host=host, port=port, url=url)
        except _EndedError as ended:
            print_error(str(ended))
            return FAILED
        finally:
            services.stop()
    return DONE


class _EndedError(Exception):
    """A process that should go on does not."""


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

    def run(
        self, location: CodeLocation | None, folder: Path, *, host: str, port: int, url: str
    ) -> None:
        """Start the processes, each when what it needs is there, and say where the UI is."""
        workspace, is_ready = Path("workspace.yaml"), True
        if location is not None:
            workspace, code = folder / "workspace.yaml", folder / "code"
            server = {"socket": str(code), "location_name": location.name}
            workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
            options = ["--socket", str(code), "--location-name", location.name, *location.options]
            command = ["-m", "dagster", "code-server", "start", "--log-level", "warning", *options]
            self._start("code server", [*command, "--inject-env-vars-from-instance"])
            is_ready = self._wait(code.exists)
        if not is_ready:
            return
        target = ["-w", str(workspace), "--code-server-log-level", "warning"]
        listen = ["-h", host, "-p", str(port)]
        web = ["-m", "tokflow.components.webserver", host]
        self._start("web server", [*web, *listen, "--dagster-log-level", "warning", *target])
        self._start("daemon", ["-c", RUN_DAEMON, "run", "--log-level", "warning", *target])
        if self._wait(lambda: _is_guarded(url)):
            print(f"Dagster's web UI: {url} (Ctrl-C ends it)", flush=True)
            self._wait(lambda: False)

    def stop(self) -> None:
        """End all processes and what they have started, as Ctrl-C would.

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
        """Wait for it and return True, or False as soon as this process is told to end."""
        while not self._is_told_to_end:
            for name, process in self._processes.items():
                if (status := process.poll()) is not None:
                    raise _EndedError(
                        f"the {name} of the web UI ended by itself, with status {status}: what it "
                        "printed says why; nothing else of the web UI is left running"
                    )
            if until():
                return True
            time.sleep(POLL_SECONDS)
        return False


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a process and all it has started; return whether any of them is left."""
    process.poll()  # takes note of its end
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _is_guarded(url: str) -> bool:
    """Return whether the web server answers, and refuses what has not its name."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
    try:
        connection.request("GET", "/server_info", headers={"Host": ELSEWHERE})
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

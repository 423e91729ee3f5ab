"""A project with one small dataset, as a user of Dagster has it, and `dagster dev` in it."""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from examples.demo import collect
from tokflow_tests.serving import ask, end, free_port, wait_for

ROOT = Path(__file__).parents[2]

PYPROJECT = """\
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "tales"
code_location_name = "tales"
code_location_target_module = "tokflow.definitions"
"""

INSTANCE = """\
from dagster._daemon import controller

from tokflow.components.instance import ProjectInstance

controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 2
"""
"""What the daemon loads first: it looks after backfills, each step of one, every 30 s otherwise."""

DATASET = {
    "name": "demo",
    "raw": {"files": "data/raw/*.parquet"},
    "documents": {"text": "content"},
    "tokenizer": {"kind": "trained", "vocab_size": 2048},
    "split": {
        "parts": {
            "train": {"start": 0, "characters": 550_000},
            "validation": {"start": 550_000},
        }
    },
    "packing": {"strategy": "best_fit", "sequence_length": 512},
    "exports": ["bin", "parquet"],
    "store": "data/store",
}
PACKAGES = ("asyncio", "email", "http", "importlib", "json", "multiprocessing", "unittest")
"""Of Python's library: its documents."""

_PEER = re.compile(r'connect\(.*(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Served:
    """A project whose web UI and daemon run."""

    folder: Path
    url: str
    trace: Path
    """What strace writes down of the connections that its processes make."""

    def ask(self, query: str, **variables: Any) -> Any:
        """Return what Dagster's GraphQL answers."""
        return ask(self.url, query, variables)

    def peers(self) -> set[str]:
        """Return the IP addresses that processes of the server connected to, or tried to."""
        return set(_PEER.findall(self.trace.read_text()))


def make_project(folder: Path) -> Path:
    """Make the project with its raw files, the first Python sources of this machine."""
    (folder / "tales/defs/demo").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    settings["instance_class"]["module"] = "tales.instance"
    (folder / "dagster.yaml").write_text(yaml.safe_dump(settings))
    (folder / "tales/instance.py").write_text(INSTANCE)
    declared = {"type": "tokflow.components.TextDataset", "attributes": DATASET}
    (folder / "tales/defs/demo/defs.yaml").write_text(yaml.safe_dump(declared, sort_keys=False))
    library = Path(sysconfig.get_paths()["stdlib"])
    collect(folder / "data/raw", {name: library / name for name in PACKAGES})
    return folder


def run_tokflow(*command: str, folder: Path) -> None:
    """Run a command of tokflow in the folder; fail where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tokflow", *command],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def serving(folder: Path, *command: str) -> Iterator[Served]:
    """Start a command that serves the web UI of the project on a port of this machine."""
    port = free_port()
    trace = folder / "connections.txt"
    # Signals by default: of a shell's job in the background SIGINT would end nothing.
    watched = ("env", "--default-signal=INT,TERM", "strace", "-f", "-I", "4", "-qq")
    watched += ("--seccomp-bpf", "-e", "trace=connect", "-o", str(trace))
    script = Path(sys.executable).with_name(command[0])
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*watched, script, *command[1:], "--port", str(port)],
            cwd=folder,
            env=_environment(folder),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    served = Served(folder, f"http://127.0.0.1:{port}", trace)
    try:
        _wait_for(served, server)
        yield served
    finally:
        end(server)


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables that the server sees, and no others."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def _wait_for(served: Served, server: "subprocess.Popen[bytes]") -> None:
    """Wait until the code location is loaded."""
    query = "{workspaceOrError {... on Workspace {locationEntries {loadStatus}}}}"

    def is_loaded() -> bool:
        assert server.poll() is None, (served.folder / "server.log").read_text()[-4000:]
        try:
            entries = served.ask(query)["workspaceOrError"]["locationEntries"]
        except OSError:
            return False
        return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)

    wait_for(is_loaded, f"the code location of {served.folder / 'server.log'}")

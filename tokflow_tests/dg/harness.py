"""The wheel, and a project that `create-dagster` makes, in the environment of `make test-dg`."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tokflow_tests.serving import ask, free_port, wait_for

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-dg"
PIP_INSTALL = ("python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "tokflow")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A folder to run commands in, with a home of its own."""

    folder: Path
    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that commands see, and no others."""
        return {
            **self.variables,
            "PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(ENVIRONMENT),
            "HOME": str(self.home),
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "COLUMNS": "200",
        }

    @contextmanager
    def serving(self, *command: str) -> Iterator[Callable[[str], Any]]:
        """Start a command that serves Dagster's web UI, and yield what asks its GraphQL."""
        port = free_port()
        server = subprocess.Popen(
            [ENVIRONMENT / "bin" / command[0], *command[1:], "--port", str(port)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        asked = partial(ask, f"http://127.0.0.1:{port}")

        def answer() -> Any:
            assert server.poll() is None, "the server has ended"
            with suppress(OSError):
                return asked("{version}")

        try:
            wait_for(answer, "the server")
            yield asked
        finally:
            server.terminate()
            server.wait(timeout=60)

    def run(self, *command: str | Path, status: int = 0) -> str:
        """Return what a command of the environment prints; fail where its status is another."""
        return self._done(command, status).stdout

    def log_of(self, *command: str | Path, status: int = 0) -> str:
        """Return what a command writes on stderr, where Dagster logs."""
        return self._done(command, status).stderr

    def _done(
        self, command: Sequence[str | Path], status: int
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [ENVIRONMENT / "bin" / command[0], *command[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != status:
            output = f"{done.stdout}{done.stderr}"[-4_000:]
            pytest.fail(f"{command}: exit status {done.returncode}\n{output}")
        return done

    def write(self, name: str, text: str | Sequence[str]) -> None:
        """Write a file, or one of lines."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else "".join(f"{line}\n" for line in text))


def install_wheel(folder: Path) -> Place:
    """Return the folder as a place where tokflow is the wheel of this repository."""
    if not (ENVIRONMENT / "ready").is_file():
        pytest.fail(f"{ENVIRONMENT} is not there: run `make test-dg`")
    home = folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    place = Place(folder=folder, home=home)
    place.run(*PIP_INSTALL, "--force-reinstall", _build_wheel(place))
    return place


def new_project(place: Place, name: str) -> Place:
    """Return a project in the folder of the place, made as Dagster's users make theirs."""
    place.run("create-dagster", "project", name, "--no-uv-sync")
    project = replace(place, folder=place.folder / name)
    project.run(*PIP_INSTALL, "--editable", ".")
    return project


def _build_wheel(place: Place) -> Path:
    """Return a wheel of the files that git has here, and not of what older builds left."""
    source = place.folder / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = ("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    place.run(*pip, "--wheel-dir", "dist", "./source")
    [wheel] = (place.folder / "dist").glob("*.whl")
    return wheel

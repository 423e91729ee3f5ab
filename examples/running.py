"""One example on small data: copied, built by the command line, and read by its consumer."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from examples.small import SMALLER, environment_of, small_hub, write_small

EXAMPLES = ("lance", "c_code", "tinystories", "sst2", "several", "chats")
WITH_TORCH = ("train",)
"""Those that need torch too, which the environment of `make example-train` has."""

CONSUMERS = {"train": ("train.py", "60")}
"""Commands that read an example, where it is not consume.py."""

HERE = Path(__file__).parent


class Seconds(NamedTuple):
    """Whole processes, from their start to their end."""

    built: float
    again: float
    read: float


def run_example(name: str, folder: Path, *, say: Callable[[str], object]) -> Seconds:
    """Make small data in `folder`, build the datasets, build them again, and read them; say what
    each of these says at its end."""
    prepare(name, folder)
    tokflow = [sys.executable, "-m", "tokflow", "run", "--config", "dataset.yaml"]
    with small_hub() as hub:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), **environment_of(hub)}
        run = partial(_seconds, folder=folder, environment=environment)
        built, said = run(tokflow)
        again, unchanged = run(tokflow)
        read, last = run([sys.executable, *CONSUMERS.get(name, ["consume.py"])])
    ends = [line for line in (said + unchanged).splitlines() if re.search(ENDS, line)]
    say("\n".join([f"--- {name}", *ends, last.rstrip()]))
    return Seconds(built, again, read)


ENDS = r": (\d+ outputs? new|nothing to do)"
"""The last line of each dataset."""


def prepare(name: str, folder: Path) -> Path:
    """Copy an example into `folder`, its YAML with the numbers of the small data, and make these;
    return the YAML."""
    shutil.copytree(HERE / name, folder)
    path = folder / "dataset.yaml"
    text = path.read_text()
    for real, small in SMALLER.get(name, {}).items():
        assert real in text, f"{path} has no {real}"
        text = text.replace(real, small)
    path.write_text(text)
    write_small(name, folder)
    return path


def _seconds(command: list[str], *, folder: Path, environment: dict[str, str]) -> tuple[float, str]:
    """Return how long a command takes, and what it prints. Raises: SystemExit if it fails."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return seconds, done.stdout

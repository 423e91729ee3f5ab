"""Commands that are interrupted at random, and run again: `make test-crash KILLS=200 SEED=1`.

After the rerun every byte of the store is that of an undisturbed build, nothing else lies there
or in the folder for temporary files, and no process is left. A trial is a function of SEED and
its number: `make test-crash SEED=1 ARGS="-k build-17"` does one again.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tokflow_tests.crash.scenarios import SCENARIOS, Scenario, serve
from tokflow_tests.outputs import content

pytestmark = pytest.mark.crash

SEED = os.environ.get("SEED", "1")
KILLS = int(os.environ.get("KILLS", "20"))
OFTEN = ("build", "exports", "added", "kept", "download")
TURNS = (*OFTEN, "workers", *OFTEN, "many", *OFTEN, "many", *OFTEN, "recorded")
"""The scenarios in turn; two of them take several seconds to import what they need."""

SIGNALS = {
    "SIGKILL": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
    "SIGINT": signal.SIGINT,
}

STEPPER = """
import os, sys

EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.link",
          "os.chmod", "os.truncate", "shutil.rmtree", "socket.connect", "subprocess.Popen"}
place, number, count_to, last = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], 0
root = os.getpid()

def step(event, arguments):
    global last
    if event not in EVENTS or os.getpid() != root:
        return
    if event not in ("socket.connect", "subprocess.Popen") and "store" not in str(arguments[0]):
        return
    last += 1
    if last == place:
        os.kill(root, number)

sys.addaudithook(step)
sys.argv = ["tokflow", *sys.argv[4:]]
from tokflow.cli import main
try:
    main()
finally:
    with open(count_to, "w") as file:
        file.write(str(last))
"""
"""Runs a command that gets the signal before the step `place` on the disk: no file is opened,
renamed or removed between two steps."""


@dataclass(frozen=True, slots=True)
class Expected:
    """An undisturbed run of a scenario."""

    before: Path
    """The folder as it is when the command begins."""
    files: dict[str, bytes]
    folders: set[str]
    num_steps: int
    seconds: float


def start(
    scenario: Scenario, folder: Path, *, place: int = 0, number: int = 0
) -> subprocess.Popen[str]:
    """Start the command in a session of its own; its temporary files are in `folder`."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    project = folder / scenario.project
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "DAGSTER_HOME": str(folder / "home"),
        "no_proxy": "127.0.0.1",
        "HF_MODULES_CACHE": str(folder / "modules"),
    }
    command = [sys.executable, "-P", "-c", STEPPER, str(place), str(number), str(folder / "steps")]
    return subprocess.Popen(
        [*command, *scenario.command],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Return what the process printed; none of its session is left after a while."""
    printed, _ = process.communicate(timeout=120)
    deadline = time.monotonic() + 20
    while left := members_of(process.pid):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)
    return printed


def members_of(session: int) -> list[str]:
    """Return the command lines of the processes of a session, but for those that have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, of_session = (folder / "stat").read_text().rpartition(") ")[2].split()[:4]
            if int(of_session) == session and state != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def rerun(scenario: Scenario, folder: Path) -> str:
    process = start(scenario, folder)
    printed = finish(process)
    assert process.returncode == 0, printed
    return printed


def files_in(scenario: Scenario, folder: Path) -> dict[str, bytes]:
    """Return the store's files, without where the folder lies, which recorded.json tells."""
    files = content(folder / scenario.store)
    return {name: data.replace(str(folder).encode(), b"") for name, data in files.items()}


def folders_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_dir() and not path.is_symlink()
    }


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with serve() as url:
        yield url


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, address: str) -> Iterator:
    known: dict[str, Expected] = {}

    def expected(name: str) -> Expected:
        if name not in known:
            scenario = SCENARIOS[name]
            folder = tmp_path_factory.mktemp(name)
            before = folder / "before"
            before.mkdir()
            scenario.prepare(before, address)
            (before / "home").mkdir()
            after = Path(shutil.copytree(before, folder / "after", symlinks=True))
            started = time.monotonic()
            rerun(scenario, after)
            known[name] = Expected(
                before=before,
                files=files_in(scenario, after),
                folders=folders_below(after / scenario.store),
                num_steps=int((after / "steps").read_text()),
                seconds=time.monotonic() - started,
            )
        return known[name]

    return expected


TRIALS = [
    pytest.param(name, number, id=f"{name}-{number}")
    for number, name in zip(range(KILLS), itertools.cycle(TURNS), strict=False)
]


@pytest.mark.parametrize(("name", "trial"), TRIALS)
def test_a_rerun_makes_what_an_undisturbed_run_makes(
    name: str, trial: int, undisturbed, tmp_path: Path
):
    scenario, expected = SCENARIOS[name], undisturbed(name)
    choose = random.Random(f"{SEED}:{trial}")
    folder = Path(shutil.copytree(expected.before, tmp_path / "trial", symlinks=True))

    said = [interrupt(scenario, folder, expected, choose) for _ in range(choose.choice([1, 1, 2]))]
    rerun(scenario, folder)

    assert files_in(scenario, folder) == expected.files, said
    assert folders_below(folder / scenario.store) == expected.folders, said
    assert [path.name for path in (folder / "tmp").iterdir()] == [], said


def interrupt(scenario: Scenario, folder: Path, expected: Expected, choose: random.Random) -> str:
    """Interrupt the command once, at a step on the disk or after a time; say how."""
    name = choose.choice(list(SIGNALS))
    if choose.random() < 0.6:
        place = choose.randrange(1, expected.num_steps + 1)
        process = start(scenario, folder, place=place, number=SIGNALS[name])
        how = f"{name} at step {place}"
    else:
        seconds = choose.uniform(0.2, 1.0) * expected.seconds
        process = start(scenario, folder)
        time.sleep(seconds)
        if name == "SIGINT":  # as Ctrl-C in a terminal does
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(SIGNALS[name])
        how = f"{name} after {seconds:.2f} s"
    printed = finish(process)
    assert "Traceback" not in printed or name == "SIGTERM", printed
    return f"{how}: exit status {process.returncode}"

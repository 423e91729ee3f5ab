import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokflow.pools.local import LocalPool, Worker, stop
from tokflow.pools.pool import Advance
from tokflow_tests.waiting import wait_until

SCRIPT = """
import os
import pickle
from pathlib import Path

from tokflow.pools import get_ready, local, open_pool
from tokflow_tests.pools.pool_tasks import server_of

local.FORK_SERVER = "tokflow_tests.pools.light_fork_server"
print("begun", flush=True)
children = Path(f"/proc/self/task/{os.getpid()}/children")
get_ready(1)
assert children.read_text() == ""
get_ready(2)
before = children.read_text().split()
with open_pool(2) as pool:
    for _, found in pool.map(server_of, [1, 2]):
        assert str(found[0]) in before, (found, before)
with local.Worker() as worker:
    worker.begin(pickle.dumps((server_of, 1)))
    assert worker.result()[0] == os.getpid()
print("ended", flush=True)
"""


def start(folder: Path, script: str, imports: str = "") -> "subprocess.Popen[str]":
    """Run a script in a folder and in a group of its own."""
    (folder / "script.py").write_text(script)
    return subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{imports}:{Path(__file__).parents[2]}".strip(":")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_script_without_a_guard_is_run_once_and_can_start_a_fork_server_before_a_pool(
    tmp_path: Path,
):
    said = start(tmp_path, SCRIPT).communicate(timeout=120)

    assert said == ("begun\nended\n", "")


def processes_in(folder: Path) -> list[int]:
    """Return the processes that work in a folder."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.resolve() == folder:
                found.append(int(link.parent.name))
        except OSError:  # of another user, or ended since
            continue
    return found


SCRIPT_OF_POOL = """
import signal
from pathlib import Path

from tokflow.pools import local
from tokflow_tests.pools.pool_tasks import work

local.FORK_SERVER = "tokflow_tests.pools.light_fork_server"
signal.signal(signal.SIGTERM, signal.default_int_handler)
with local.LocalPool(2) as pool:
    list(pool.map(work, [Path("busy")] * 3))
"""


def test_the_module_for_a_fork_server_does_nothing_in_other_processes():
    code = (
        "import os, signal\n"
        "before = signal.getsignal(signal.SIGTERM), dict(os.environ)\n"
        "import tokflow.pipeline.fork_server\n"
        "assert (signal.getsignal(signal.SIGTERM), dict(os.environ)) == before\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_when_their_parent_is_killed_and_clean_up_when_all_are_told_to_end(
    number: signal.Signals, tmp_path: Path
):
    (busy := tmp_path / "busy").mkdir()
    run = start(tmp_path, SCRIPT_OF_POOL)
    wait_until(lambda: len(list(busy.iterdir())) == 2)

    if number == signal.SIGKILL:
        run.kill()
    else:
        os.killpg(run.pid, number)

    _, said = run.communicate(timeout=30)
    wait_until(lambda: not processes_in(tmp_path))
    if number != signal.SIGKILL:
        assert list(busy.iterdir()) == []
        assert said.count("Traceback") == 1  # of the script


SCRIPT_OF_TRAINER = """
import tokflow

tokenizer = {"kind": "trained", "vocab_size": 300}
tokflow.tokenize_and_save("texts.jsonl", tokenizer=tokenizer, output="store")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_trainer_that_holds_the_interpreter_ends_when_what_started_it_is_killed(tmp_path: Path):
    (tmp_path / "texts.jsonl").write_text('{"text": "two words and more"}\n')
    (tmp_path / "imports").mkdir()
    (tmp_path / "imports" / "gigatoken.py").write_text(
        "import ctypes, pathlib\n"
        "def train_bpe(*_, **__):\n"
        "    pathlib.Path('training').touch()\n"
        "    ctypes.PyDLL(None).sleep(100)\n"
    )

    with start(tmp_path, SCRIPT_OF_TRAINER, str(tmp_path / "imports")) as run:
        wait_until((tmp_path / "training").exists)
        run.kill()

    wait_until(lambda: not processes_in(tmp_path))


def hold_out(mark: Path, advance: Advance) -> None:
    """Work on, whoever tells this process to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark.touch()
    time.sleep(60)


def test_processes_that_do_not_end_are_killed_together_a_second_later(tmp_path: Path):
    workers = [Worker() for _ in range(2)]
    for index, worker in enumerate(workers):
        worker.begin(pickle.dumps((hold_out, tmp_path / str(index))))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)

    started = time.monotonic()
    stop([worker.process for worker in workers])

    assert time.monotonic() - started < 2.5
    assert [worker.process.exitcode for worker in workers] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(
    ("soft", "hard", "workers", "raised_to"),
    [
        (1024, 4096, 100, []),
        (512, resource.RLIM_INFINITY, 100, [656]),
        (300, 456, 50, [456]),
        (100, 100, 1, [100]),
    ],
)
def test_the_limit_of_open_files_is_raised_for_many_workers_or_allows_fewer(
    soft: int, hard: int, workers: int, raised_to: list[int], monkeypatch: pytest.MonkeyPatch
):
    limits: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit[0]))

    assert LocalPool(100)._num_workers == workers
    assert limits == raised_to

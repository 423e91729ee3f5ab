import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tokflow.pools.local import FORK_SERVER
from tokflow.pools.processes import ProcessPool, affordable, stop_all

SCRIPT = """
import os
from tokflow.pools import local
from tokflow.pools.processes import ProcessPool
from tokflow_tests.pools.pool_tasks import double

local.FORK_SERVER = "tokflow_tests.pools.light_fork_server"
print("begun", flush=True)
with ProcessPool(1) as pool:
    pool.submit(os.getpid).result()
with local.LocalPool(2) as pool:
    list(pool.map(double, [0, 1]))
print("ended", flush=True)
"""


def test_a_script_without_a_guard_is_run_once(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)

    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert done.stdout.splitlines() == ["begun", "ended"]


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


def wait_for_none_in(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while processes_in(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_in(folder) == []


def assert_none_outlives(folder: Path, is_busy: Callable[[], bool], imports: str = "") -> None:
    """Kill the script of a folder when its processes are busy, and wait for their ends."""
    run = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{imports}:{Path(__file__).parents[2]}".strip(":")},
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not is_busy() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert is_busy()
    finally:
        run.kill()
        run.wait()

    wait_for_none_in(folder)


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


def busy_pool(folder: Path) -> "subprocess.Popen[bytes]":
    """Start a script whose workers are busy when this returns, in a group of its own."""
    (folder / "script.py").write_text(SCRIPT_OF_POOL)
    (folder / "busy").mkdir()
    run = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list((folder / "busy").iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return run


SCRIPT_OF_SERVER = """
import os
from pathlib import Path

from tokflow.pools import get_ready, local, open_pool
from tokflow_tests.pools.pool_tasks import server_of

local.FORK_SERVER = "tokflow_tests.pools.light_fork_server"
children = Path(f"/proc/self/task/{os.getpid()}/children")
get_ready(1)
assert children.read_text() == ""
get_ready(2)
before = children.read_text().split()
with open_pool(2) as pool:
    for _, found in pool.map(server_of, [1, 2]):
        assert str(found[0]) in before, (found, before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no process is forked elsewhere")
def test_what_workers_are_forked_from_can_start_before_there_is_a_pool(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-c", SCRIPT_OF_SERVER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        timeout=60,
    )


def test_the_module_for_a_fork_server_does_nothing_in_other_processes():
    code = (
        "import os, signal\n"
        "before = signal.getsignal(signal.SIGTERM), dict(os.environ)\n"
        "import tokflow.pipeline.fork_server\n"
        "assert (signal.getsignal(signal.SIGTERM), dict(os.environ)) == before\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_and_what_they_are_forked_from_end_when_their_parent_is_killed(tmp_path: Path):
    run = busy_pool(tmp_path)

    run.kill()

    run.communicate()
    wait_for_none_in(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_lets_workers_clean_up(number: signal.Signals, tmp_path: Path):
    run = busy_pool(tmp_path)

    os.killpg(run.pid, number)

    _, said = run.communicate(timeout=30)
    assert list((tmp_path / "busy").iterdir()) == []
    wait_for_none_in(tmp_path)
    assert said.count(b"Traceback") == 1  # of the script


SCRIPT_OF_TRAINER = """
import tokflow

tokenizer = {"kind": "trained", "vocab_size": 300}
tokflow.tokenize_and_save("texts.jsonl", tokenizer=tokenizer, output="store")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_trainer_that_holds_the_interpreter_ends_when_what_started_it_is_killed(tmp_path: Path):
    (tmp_path / "texts.jsonl").write_text('{"text": "two words and more"}\n')
    (tmp_path / "script.py").write_text(SCRIPT_OF_TRAINER)
    (tmp_path / "imports").mkdir()
    (tmp_path / "imports" / "gigatoken.py").write_text(
        "import ctypes, pathlib\n"
        "def train_bpe(*_, **__):\n"
        "    pathlib.Path('training').touch()\n"
        "    ctypes.PyDLL(None).sleep(100)\n"
    )

    assert_none_outlives(tmp_path, (tmp_path / "training").exists, str(tmp_path / "imports"))


def test_an_interrupted_block_does_not_wait_for_its_processes():
    started = time.monotonic()

    with pytest.raises(KeyboardInterrupt), ProcessPool(1) as pool:  # noqa: PT012
        pool.submit(time.sleep, 0).result()
        pool.submit(time.sleep, 60)
        raise KeyboardInterrupt

    assert time.monotonic() - started < 30


def test_what_does_not_interrupt_this_process_interrupts_none_of_its_own():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a script
    try:
        with ProcessPool(1) as pool:
            pool.submit(signal.raise_signal, signal.SIGINT).result()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform != "linux", reason="no process is forked elsewhere")
def test_the_exit_status_of_a_fork_is_the_same_for_all_threads_that_wait_for_it():
    for _ in range(5):
        with ProcessPool(1, fork_server=FORK_SERVER) as pool:
            pool.submit(os.getpid).result()
            pool.started()[0].kill()

            assert pool.exit_codes() == [-signal.SIGKILL]
        assert pool.exit_codes() == [-signal.SIGKILL]


def hold_out(mark: Path) -> None:
    """Work on, whoever tells this process to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark.touch()
    time.sleep(60)


def test_pools_that_do_not_end_are_killed_together_a_second_later(tmp_path: Path):
    pools = [ProcessPool(1) for _ in range(2)]
    for index, pool in enumerate(pools):
        pool.submit(hold_out, tmp_path / str(index))
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.01)

    started = time.monotonic()
    stop_all(pools)

    assert time.monotonic() - started < 2.5
    codes = [process.exitcode for pool in pools for process in pool.started()]
    assert codes == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "workers", "raised_to"),
    [
        (1_024, 4_096, 8, 8, None),
        (1_024, 4_096, 192, 192, 2_560),
        (1_024, resource.RLIM_INFINITY, 192, 192, 2_560),
        (1_024, 1_024, 192, 64, 1_024),
        (100, 100, 192, 1, 100),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 192, 192, None),
    ],
)
def test_the_limit_of_open_files_is_raised_for_many_workers_or_allows_fewer(
    soft: int,
    hard: int,
    wanted: int,
    workers: int,
    raised_to: int | None,
    monkeypatch: pytest.MonkeyPatch,
):
    limits: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit[0]))

    assert affordable(wanted) == workers
    assert limits == ([] if raised_to is None else [raised_to])

"""Claims about every pool, and about the one of this machine's processes."""

import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tokflow import pools as pool_module
from tokflow.errors import BadDocumentError, ConfigError, TokflowError
from tokflow.pools import local, open_pool
from tokflow.pools.local import LocalPool, Worker, stop
from tokflow.pools.pool import Advance, InProcess, LostWorkerError, Pool, ignore
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines.fast import open_gigatoken
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow_tests.pools.pool_tasks import (
    Unopenable,
    clean_up_slowly,
    cores_of,
    die,
    double,
    panic_at_0,
    server_of,
    work_unless_well,
)
from tokflow_tests.tiny import FEW_TEXTS, declare_texts, save_tokenizer
from tokflow_tests.waiting import wait_until


def encode(task: Tokenizer, advance: Advance, *, engine: str) -> tuple[list[int], set[Path]]:
    """Return the tokens of many texts, and the threads that a library began for them."""
    before = set(Path("/proc/self/task").iterdir())
    open_it = open_reference if engine == "reference" else open_gigatoken
    encoded = open_it(task, in_text="ordinary").encode(to_texts(FEW_TEXTS * 1_000))
    return encoded.token_ids.tolist(), set(Path("/proc/self/task").iterdir()) - before


@pytest.fixture(scope="module", params=["1", "2", "2, not forked"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with open_pool(int(request.param[0])) as opened:
        with pytest.MonkeyPatch.context() as patch:
            if "not forked" in request.param:
                patch.setattr(local, "CAN_FORK", False)
            opened.start()
            list(opened.map(double, [0, 1]))  # for which workers start
        yield opened


def test_results_and_errors_are_values_and_progress_is_the_sum(pool: Pool):
    check_results_and_progress(pool)


def check_results_and_progress(pool: Pool) -> None:
    """Check what every pool gives of tasks of which two fail."""
    heard: list[tuple[int, int]] = []

    results = dict(pool.map(double, range(8), advance=lambda *call: heard.append(call)))

    assert {task: result for task, result in results.items() if isinstance(result, int)} == {
        task: 2 * task for task in (0, 1, 2, 5, 6, 7)
    }
    assert isinstance(results[3], BadDocumentError)
    assert (results[3].row, results[3].fields()["found"]) == (3, "c")
    assert "of four" in str(results[4])
    assert [sum(column) for column in zip(*heard, strict=True)] == [6, 21]


def test_tasks_are_taken_as_workers_become_free(pool: Pool):
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(5, 20):
            taken.append(task)
            yield task

    results = pool.map(double, tasks())
    next(results)

    assert len(taken) <= 4
    results.close()


def test_one_task_alone_runs_in_this_process():
    with LocalPool(2) as pool:
        [(_, process)] = pool.map(partial(die, times=0), [Path("well")])

    assert process == os.getpid()


def test_a_task_whose_worker_is_killed_is_tried_once_more(tmp_path: Path):
    tasks = [tmp_path / name for name in ("once", "twice", "well")]

    with LocalPool(2) as pool:
        once = dict(pool.map(partial(die, times=1), [*tasks[:1], *tasks[2:]]))
        twice = dict(pool.map(partial(die, times=2), tasks[1:]))

    assert once[tasks[0]] == 1
    assert isinstance(twice[tasks[2]], int)
    lost = twice[tasks[1]]
    assert isinstance(lost, LostWorkerError)
    assert lost.found == ("worker died twice (killed by SIGKILL)")
    assert "fewer workers (--jobs) or more memory" in lost.remedy


def test_a_worker_that_ends_while_it_is_idle_costs_no_attempt(tmp_path: Path):
    tasks = [tmp_path / "once", tmp_path / "well"]
    with LocalPool(2) as pool:
        for _, process in pool.map(partial(die, times=0), [tmp_path / "well"] * 4):
            assert isinstance(process, int)
        for worker in pool._workers:
            worker.process.kill()
            worker.process.join()

        results = dict(pool.map(partial(die, times=1), tasks))

    assert results[tasks[0]] == 1
    assert isinstance(results[tasks[1]], int)


def test_a_panic_of_a_library_an_exit_and_a_task_that_cannot_be_opened_are_values():
    with LocalPool(2) as pool:
        panic, opened, well, ended = (
            result
            for _, result in sorted(
                pool.map(panic_at_0, [0, Unopenable(1), 2, 3]), key=lambda done: int(done[0])
            )
        )

    assert isinstance(panic, TokflowError)
    assert panic.found == "PanicError: index out of bounds"
    assert isinstance(opened, TokflowError)
    assert opened.found == "ValueError: invalid literal for int() with base 10: 'one'"
    assert "--jobs 1" in opened.remedy
    assert isinstance(well, int)
    assert isinstance(ended, TokflowError)
    assert ended.found == "SystemExit: "


def test_a_task_that_cannot_be_sent_has_that_for_its_result_and_the_others_go_on():
    with LocalPool(2) as pool:
        results = dict(pool.map(double, [1, unpicklable := lambda: 0, 2]))

    assert isinstance(results.pop(unpicklable), (pickle.PicklingError, AttributeError))
    assert results == {1: 2, 2: 4}


def test_workers_are_made_as_tasks_come():
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))

    with LocalPool(100) as pool:
        # Files of the tests before may be closed meanwhile.
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
        list(pool.map(double, [0, 1, 2]))
        assert len(pool._workers) == 3


def test_a_worker_that_is_told_to_end_twice_still_cleans_up(tmp_path: Path):
    worker = Worker()
    worker.begin(pickle.dumps((clean_up_slowly, tmp_path)))
    wait_until((tmp_path / "busy").exists)

    worker.process.terminate()
    wait_until((tmp_path / "cleaning up").exists)
    stop([worker.process])

    assert [path.name for path in tmp_path.iterdir()] == ["cleaning up"]


def test_a_closed_map_stops_what_is_under_way_and_the_pool_goes_on(tmp_path: Path):
    (tmp_path / "busy").mkdir()

    def tasks() -> Iterator[Path]:
        yield tmp_path / "well"
        yield tmp_path / "busy"

    with LocalPool(2) as pool:
        results = pool.map(work_unless_well, tasks())
        assert next(results)[0].name == "well"
        results.close()
        after = dict(pool.map(double, [1, 2]))

    assert list((tmp_path / "busy").iterdir()) == []
    assert after == {1: 2, 2: 4}


def test_a_pool_that_is_left_amid_a_map_lets_the_worker_that_is_busy_clean_up(tmp_path: Path):
    (tmp_path / "busy").mkdir()

    with LocalPool(2) as pool:
        results = pool.map(work_unless_well, [tmp_path / "well", tmp_path / "busy"])
        next(results)
        wait_until(lambda: list((tmp_path / "busy").iterdir()))

    assert list((tmp_path / "busy").iterdir()) == []
    results.close()


def test_how_many_work_at_once_is_asked_of_the_environment_and_the_machine(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TOKFLOW_JOBS", "1")
    assert isinstance(open_pool(), InProcess)
    assert isinstance(open_pool(2), LocalPool)


@pytest.mark.parametrize("asked", ["many", "0", "-1", "²", ""])
def test_a_wrong_number_of_processes_is_blamed_on_who_gave_it(
    asked: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKFLOW_JOBS", asked)

    with pytest.raises(ConfigError, match=f"TOKFLOW_JOBS: expected how many .*{asked!r}"):
        open_pool()
    with pytest.raises(ConfigError, match=r"^jobs: expected how many processes .*'0'"):
        open_pool(0)


def test_where_tasks_run_is_asked_of_the_environment_and_refused_where_it_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TOKFLOW_POOL", "slurm")

    with pytest.raises(ConfigError, match=r"^TOKFLOW_POOL: expected local, .*'slurm'"):
        open_pool()
    assert isinstance(open_pool(1, "local"), InProcess)
    monkeypatch.setattr(pool_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^pool: expected ray .*'dagster-tokflow\[ray\]'"):
        open_pool(kind="ray")


def test_a_worker_counts_one_core_as_its_own():
    with LocalPool(2) as pool:
        assert [cores for _, cores in pool.map(cores_of, [1, 2])] == [1, 1]


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="no process is forked elsewhere")


@needs_linux
def test_workers_are_forks_of_a_process_without_threads_in_the_environment_of_now(
    monkeypatch: pytest.MonkeyPatch,
):
    with LocalPool(2) as pool:
        list(pool.map(server_of, [1, 2]))
    monkeypatch.setenv("OF_NOW", "yes")
    with LocalPool(2) as pool:
        servers = {server for _, server in pool.map(server_of, [1, 2])}

    [(server, num_threads, of_now)] = servers
    assert server != os.getpid()
    assert (num_threads, of_now) == (1, "yes")


@needs_linux
def test_a_fork_server_that_is_killed_takes_no_worker_with_it_and_another_follows():
    with LocalPool(2) as pool:
        (server, *_), _ = dict(pool.map(server_of, [1, 2])).values()
        os.kill(server, signal.SIGKILL)
        assert dict(pool.map(double, [1, 2])) == {1: 2, 2: 4}
    with LocalPool(2) as pool:
        servers = {found[0] for _, found in pool.map(server_of, [1, 2])}

    assert servers.isdisjoint({server, os.getpid()})


@needs_linux
@pytest.mark.parametrize("engine", ["reference", "gigatoken"])
def test_an_engine_begins_no_threads_in_a_worker_and_gives_the_same_tokens(
    engine: str, tmp_path: Path
):
    tokenizer = save_tokenizer(declare_texts(tmp_path, kind="trained", vocab_size=270))
    here, _ = encode(tokenizer, ignore, engine=engine)

    with LocalPool(2) as pool:
        in_workers = list(pool.map(partial(encode, engine=engine), [tokenizer, tokenizer]))

    for _, (token_ids, threads) in in_workers:
        assert token_ids == here
        assert len(threads) == 0


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

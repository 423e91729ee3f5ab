"""Claims about every pool, and about the one of this machine's processes."""

import gc
import os
import pickle
import signal
import sys
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

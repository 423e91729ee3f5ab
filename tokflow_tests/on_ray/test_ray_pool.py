"""Tasks on a cluster of Ray, whose nodes are lost, slow and have other folders."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow.errors import ConfigError
from tokflow.pipeline import run_log, tasks
from tokflow.pipeline.run import build_dataset
from tokflow.pools import open_pool, ray_pool
from tokflow.pools.pool import Advance, LostWorkerError, Pool, Shared
from tokflow.store.remote import place_at
from tokflow.store.versions import installed_versions
from tokflow_tests.dagster_case import Case, failure
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.on_ray.conftest import Nodes
from tokflow_tests.pools import test_shared
from tokflow_tests.pools.pool_tasks import cores_of, die, double
from tokflow_tests.pools.test_pool import check_results_and_progress
from tokflow_tests.pools.test_shared import Counted
from tokflow_tests.waiting import wait_until


def work(folder: Path, advance: Advance) -> None:
    """Leave a file while a long task is under way."""
    mark = folder / str(os.getpid())
    try:
        mark.touch()
        for _ in range(600):
            time.sleep(0.1)
    finally:
        mark.unlink()


def path_here(task: Path, advance: Advance) -> tuple[Path, str]:
    return task, str(task)


def open_there(task: Any, advance: Advance) -> tuple[int, str, int]:
    shared, number = task
    path, _ = shared.value
    return number, str(path), test_shared.num_opened()


def read(task: Path, advance: Advance) -> bytes:
    return task.read_bytes()


@pytest.fixture
def pool(nodes: Nodes) -> Iterator[Pool]:
    with open_pool(kind="ray") as opened:
        yield opened


def test_results_and_errors_are_values_and_progress_is_the_sum(pool: Pool) -> None:
    check_results_and_progress(pool)


def test_tasks_are_taken_as_the_cluster_has_room_and_a_worker_has_one_core(pool: Pool) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(20):
            taken.append(task)
            yield task

    results = pool.map(cores_of, tasks())

    assert next(results)[1] == 1
    assert len(taken) == 2 * ray_pool.SENT_PER_CORE
    results.close()


def test_a_task_whose_process_is_killed_is_sent_again_and_not_for_ever(
    pool: Pool, tmp_path: Path
) -> None:
    tasks = [tmp_path / name for name in ("thrice", "always", "well")]

    results = dict(pool.map(partial(die, times=ray_pool.ATTEMPTS - 1), [tasks[0], tasks[2]]))
    lost = dict(pool.map(partial(die, times=ray_pool.ATTEMPTS), tasks[1:]))

    assert results[tasks[0]] == ray_pool.ATTEMPTS - 1
    assert isinstance(lost[tasks[2]], int)
    error = lost[tasks[1]]
    assert isinstance(error, LostWorkerError)
    assert error.found.startswith("WorkerCrashedError: ")


def test_ctrl_c_stops_every_task_soon_and_lets_it_clean_up(nodes: Nodes, tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), open_pool(kind="ray") as pool:
        list(pool.map(work, [tmp_path] * 8))

    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_path_of_a_url_is_one_in_the_cache_of_the_node(
    pool: Pool, nodes: Nodes, object_store: ObjectStore
) -> None:
    path = place_at(object_store.url).root / "small" / "tokens"

    [(task, result)] = pool.map(path_here, [path])

    assert task == path
    assert not isinstance(result, Exception)
    back, there = result
    assert back == path
    assert any(there.startswith(str(cache)) for cache in nodes.caches)


def test_what_tasks_share_is_opened_once_in_each_process_and_has_its_paths(
    pool: Pool, nodes: Nodes, object_store: ObjectStore
) -> None:
    shared = Shared((place_at(object_store.url).root, Counted("common")), num_tasks=8)

    results = [result for _, result in pool.map(open_there, [(shared, n) for n in range(8)])]

    for number, path, num_opened in sorted(results):
        assert num_opened == 1, number
        assert any(path.startswith(str(cache)) for cache in nodes.caches)
    assert sorted(number for number, _, _ in results) == [*range(8)]


def test_a_file_that_is_here_and_not_on_the_node_is_named(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("text")
    with (tmp_path / "raw.txt").open() as file:
        path = Path(f"/proc/self/fd/{os.dup2(file.fileno(), 777)}")  # of this process alone
        try:
            [(_, result)] = pool.map(read, [path])
        finally:
            os.close(777)

    assert isinstance(result, ConfigError)
    assert str(result).startswith(f"{path}: expected one file that every node of the Ray cluster")
    assert "at a URL such as s3://" in result.remedy


def test_where_no_cluster_is_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    with pytest.raises(ConfigError, match=r"expected a Ray cluster at 127\.0\.0\.1:1"):
        list(open_pool(kind="ray").map(double, [1]))


def test_a_node_with_another_library_makes_nothing(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {**installed_versions(), "tokenizers": "0.1"}
    monkeypatch.setattr(ray_pool, "installed_versions", lambda: here)

    [(_, result)] = pool.map(double, [1])

    assert isinstance(result, ConfigError)
    assert re.fullmatch(r"tokenizers \S+ in place of 0\.1", result.found)


KEYS = ["a.txt", "b.txt", "c.txt"]
ON_RAY: dict[str, Any] = {"resources": {"tokflow_workers": {"config": {"pool": "ray"}}}}


@pytest.fixture
def case(
    nodes: Nodes,
    object_store: ObjectStore,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Case]:
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(tasks, "MADE_TOGETHER", 1)
    monkeypatch.setattr(run_log, "SECONDS", 0.0)
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions("small_files", KEYS)
        case = Case(tmp_path, instance)
        case.attributes["store"] = f"{object_store.url}/store"
        yield case


def log_of(case: Case, run_id: str) -> list[str]:
    records = case.instance.get_records_for_run(run_id).records
    return [record.event_log_entry.user_message for record in records]


def assert_same_as_here(case: Case, result: dg.ExecuteInProcessResult) -> None:
    assert result.success, failure(result)
    there = {made.output.asset: made.manifest for made in build_dataset(case.dataset).made}
    case.attributes["store"] = "here"
    here = {made.output.asset: made.manifest for made in build_dataset(case.dataset, jobs=1).made}
    assert there == here


def test_assets_are_materialized_with_progress_in_the_log(case: Case) -> None:
    result = case.run(keys=KEYS, config=ON_RAY)

    said = log_of(case, result.run_id)
    assert any("3 documents" in line and "%" in line for line in said), said
    assert all(case.event("tokens", partition=key) for key in KEYS)
    assert_same_as_here(case, result)


def test_the_build_job_runs_on_the_cluster_that_its_config_or_the_environment_names(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKFLOW_POOL", "ray")
    job = case.defs.resolve_job_def("small_build")

    result = job.execute_in_process(instance=case.instance, raise_on_error=False)

    monkeypatch.delenv("TOKFLOW_POOL")
    assert any("3 files: " in line for line in log_of(case, result.run_id))
    assert_same_as_here(case, result)

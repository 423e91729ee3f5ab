"""Builds whose store is at a URL, the writer of which is killed at one of its requests.

Each trial chooses one request of the build by SEED and its number. What is at the URL when the
build has been run again are the objects of an undisturbed one. `make test-faults` has requests
that fail.
"""

import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tokflow.documents import ranges
from tokflow.exports import writing
from tokflow.exports.reading import find_export
from tokflow.pipeline import output_tasks
from tokflow.pipeline.plan import make_plan
from tokflow.store import requests
from tokflow.store.remote.places import place_at
from tokflow_tests.crash.test_crash import KILLS, SEED
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import store_of
from tokflow_tests.tiny import build, declare, declare_small

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)


def _built(folder: Path, store: ObjectStore) -> tuple[dict[str, bytes], int]:
    """Build, and return the objects, which a machine with an empty cache takes for all there is to
    make, and from which it reads an export; and the number of requests of the build."""
    dataset = declare_small(folder, store=f"{store.url}/store")
    with store.counted() as by_writer:
        build(dataset)
    shutil.rmtree(folder / "cache")
    assert make_plan(dataset).is_up_to_date
    export = find_export(dataset.store.shown(dataset.folder / "exports/bin/latest"))
    export.fetch()
    return _objects(store), by_writer.total()


def _objects(store: ObjectStore) -> dict[str, bytes]:
    """Return the objects without the logs of runs."""
    return {k: data for k, data in store.contents().items() if not k.endswith("_tokflow/run.json")}


def _build_elsewhere(folder: Path, store: str, environment: dict[str, str]) -> None:
    os.environ.update(environment, TOKFLOW_CACHE=str(folder / "cache"))
    build(declare_small(folder, store=store))


@pytest.mark.parametrize("trial", range(KILLS // 4))
def test_a_writer_killed_at_any_request_is_followed_by_one_that_leaves_the_same(
    trial: int, tmp_path: Path, object_store: ObjectStore
) -> None:
    expected, num_requests = _built(tmp_path, object_store)
    store, choose = object_store.with_new_bucket(), random.Random(f"{SEED}:{trial}")
    first = _kill_at_a_request(_build_elsewhere, tmp_path, store, num_requests, choose)

    assert _built(tmp_path, store)[0] == expected, first


def _kill_at_a_request(
    target: Callable[..., None],
    folder: Path,
    store: ObjectStore,
    num_requests: int,
    choose: random.Random,
    *how: int,
) -> tuple[int, bool]:
    """Kill a writer at one of its requests, before it is done or after; return which it was."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokflow_tests.tiny"])
    given = folder, f"{store.url}/store", store.environment(), *how
    writer = context.Process(target=target, args=given)

    def kill() -> None:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)

    is_done = choose.choice([False, True])
    first = choose.randint(1, num_requests)
    store.fail("reset" if is_done else "drop", first=first, then=kill)
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL, (first, is_done)
    store.recover()
    if choose.choice([False, True]):  # by another machine
        shutil.rmtree(folder / "cache", ignore_errors=True)
    return first, is_done


def _build_segments(
    folder: Path, store: str, environment: dict[str, str], kept_here_bytes: int
) -> None:
    os.environ.update(environment, TOKFLOW_CACHE=str(folder / "cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "RANGE_BYTES", 300)
        patch.setattr(writing, "SEGMENT_TOKENS", 300)
        patch.setattr(output_tasks, "KEPT_HERE_BYTES", kept_here_bytes)
        texts = [f"text {number} {'ä' * (number % 7)}" for number in range(50)]
        parquet = {"format": "parquet", "shards": 9, "sequences_per_group": 30}
        build(declare(folder, {"a.jsonl": texts}, store=store, exports=[parquet]))


@pytest.mark.parametrize("kept_here_bytes", [0, 10**10], ids=["published", "here"])
@pytest.mark.parametrize("trial", range(max(1, KILLS // 8)))
def test_so_is_one_of_segments_and_gc_finds_what_is_left_of_them(
    trial: int, kept_here_bytes: int, tmp_path: Path, object_store: ObjectStore
) -> None:
    def built(store: ObjectStore) -> dict[str, bytes]:
        url = f"{store.url}/store"
        with store.counted() as by_writer:
            _build_segments(tmp_path, url, store.environment(), kept_here_bytes)
        counts.append(by_writer.total())
        [dataset] = place_at(url).root.glob("tiny")
        for path in store_of(dataset).unfinished(dataset, seconds=-1):
            store_of(path).remove_all([path], seconds=-1)  # of this second, too
        return _objects(store)

    counts: list[int] = []
    expected = built(object_store)
    store, choose = object_store.with_new_bucket(), random.Random(f"{SEED}:{trial}")
    how = counts[0], choose, kept_here_bytes
    first = _kill_at_a_request(_build_segments, tmp_path, store, *how)

    found = built(store)
    assert sorted(found) == sorted(expected), first
    assert found == expected, first

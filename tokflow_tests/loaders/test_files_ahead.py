"""Rows at a URL: the same batches as on this disk, each file fetched once and ahead of its use."""

import multiprocessing
import os
import signal
from collections import Counter
from dataclasses import replace
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
import pytest

from tokflow.errors import MissingOutputError
from tokflow.exports.format import Arrays
from tokflow.exports.reading import open_export
from tokflow.loaders import Loader, mix, open_rows, open_tokens, opening
from tokflow.loaders.rows import Rows
from tokflow.store.remote.cache import make_room
from tokflow_tests.loaders.row_sources import batches_of_rank
from tokflow_tests.object_store import ObjectStore, another_machine
from tokflow_tests.tiny import build, declare
from tokflow_tests.waiting import wait_until

FORMATS = {"npy": {"shard_size": 40}, "parquet": {"shards": 14}, "arrow": {"shards": 14}}


@pytest.fixture(scope="module")
def there(
    tmp_path_factory: pytest.TempPathFactory, object_server: ObjectStore
) -> tuple[ObjectStore, Path]:
    """A bucket that another machine has built into, a part of 240 tokens in 12 files of `npy`, and
    the cache of that machine."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with another_machine(object_server, folder) as store:
        exports = [{"format": name, **options} for name, options in FORMATS.items()]
        texts = [f"{number:03d}" for number in range(60)]
        build(declare(folder, {"a.jsonl": texts}, exports=exports, store=f"{store.url}/store"))
    return store, folder / "cache"


@pytest.fixture(scope="module")
def bucket(there: tuple[ObjectStore, Path]) -> ObjectStore:
    return there[0]


@pytest.fixture
def url(object_store: ObjectStore) -> str:
    return f"{object_store.url}/store/tiny/exports"


def _rows(url: str, name: str) -> Rows:
    return open_rows(f"{url}/{name}", sequence_length=4 if name == "npy" else None)


def _fetched(store: ObjectStore, before: int) -> Counter[str]:
    """Return how often each file was asked for, manifests left aside."""
    keys = [each.key for each in store.requests[before:] if each.kind == "GET"]
    return Counter(key for key in keys if "/exports/" in key and not key.endswith(".json"))


@pytest.mark.parametrize("name", FORMATS)
def test_each_file_is_fetched_once_however_often_it_is_read(
    name: str, url: str, object_store: ObjectStore
):
    rows, before = _rows(url, name), len(object_store.requests)

    with Loader(rows, batch_size=7, seed=1, num_epochs=2) as loader:
        index = np.concatenate([batch["index"] for batch in loader])

    assert sorted(index.tolist()) == sorted([*range(len(rows))] * 2)
    fetched = _fetched(object_store, before)
    assert len(fetched) >= 12
    assert {*fetched.values()} == {1}


def test_files_come_before_they_are_asked_for(url: str, tmp_path: Path, object_store: ObjectStore):
    rows = _rows(url, "npy")

    with Loader(rows, batch_size=1, prefetch=0, num_epochs=1) as loader:
        next(loader)
        wait_until(lambda: len([*tmp_path.glob("cache/**/train_*.npy")]) >= 24)
        with object_store.counted() as count:
            num_left = sum(1 for batch in loader)

    assert (num_left, count) == (len(rows) - 1, Counter())


def _pool(kind: str, num: int) -> Pool:
    # A handler that this process has for SIGTERM may not end a worker, which the pool waits for.
    end = (signal.SIGTERM, signal.SIG_DFL)
    return multiprocessing.get_context(kind).Pool(num, signal.signal, end)


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # where a test imported it
def test_processes_of_a_machine_fetch_each_file_once_whether_forked_or_spawned(
    url: str, object_store: ObjectStore
):
    rows, before = _rows(url, "npy"), len(object_store.requests)
    rows[0]

    with _pool("fork", 2) as forked, _pool("spawn", 1) as spawned:
        ranks = [
            pool.apply_async(batches_of_rank, (rows, rank))
            for rank, pool in enumerate([forked, spawned, forked])
        ]
        found = [number for rank in ranks for number in rank.get(timeout=60)]

    assert sorted(found) == [*range(len(rows))]
    assert {*_fetched(object_store, before).values()} == {1}


def test_mixtures_windows_memory_and_token_arrays_are_the_same_by_url(
    url: str, there: tuple[ObjectStore, Path]
):
    rows = _rows(url, "npy")
    here = open_rows(*there[1].glob("*/tiny/exports/npy"), sequence_length=4)
    mixed = [mix({"a": of, "b": of}, weights={"a": 2, "b": 1}) for of in (rows, here)]

    for samples, expected in (mixed, (rows.random_windows(1), here.random_windows(1))):
        with Loader(samples, batch_size=16) as loader, Loader(expected, batch_size=16) as local:
            for _ in range(8):
                batch, own = next(loader), next(local)
                assert {name: of.tolist() for name, of in batch.items()} == {
                    name: of.tolist() for name, of in own.items()
                }
    tokens = open_tokens(f"{url}/npy")
    assert tokens[:].tolist() == open_tokens(here.source.opening.output.folder)[:].tolist()


def test_of_an_export_that_is_larger_than_the_limit_files_go_while_it_is_read_and_come_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_store: ObjectStore
):
    rows, before = _rows(url, "npy"), len(object_store.requests)
    expected = rows[:]["input_ids"].tolist()
    files = [*tmp_path.glob("cache/**/*.npy")]
    for path in files:
        os.utime(path, (path.stat().st_mtime - 86_400,) * 2)
    monkeypatch.setenv("TOKFLOW_CACHE_BYTES", "1")
    make_room(tmp_path / "cache")

    held, again = rows[:]["input_ids"].tolist(), _rows(url, "npy")[:]["input_ids"].tolist()

    assert (held, again) == (expected, expected)
    assert {*_fetched(object_store, before).values()} == {2}


def test_the_map_of_a_file_that_went_is_let_go_of(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_store: ObjectStore
):
    monkeypatch.setattr(opening, "LOOK_SECONDS", 0)
    rows = _rows(url, "npy")
    first, before = rows[0]["input_ids"].tolist(), len(object_store.requests)

    [path] = (of for of in tmp_path.glob("cache/**/train_000000.npy") if "offsets" not in of.parts)
    path.unlink()
    rows[8]

    assert rows[0]["input_ids"].tolist() == first
    fetched = _fetched(object_store, before)
    assert [num for key, num in fetched.items() if key.endswith("/train_000000.npy")] == [1]


def test_a_portion_whose_file_went_while_it_was_read_is_read_again(url: str):
    portion, *_ = open_export(f"{url}/npy").portions("train")
    loads: list[int] = []

    def load() -> Arrays:
        fields = portion.load()
        if not loads:
            portion.path.unlink()
        loads.append(len(fields["token_ids"]))
        return fields

    assert len(replace(portion, load=load).read()["token_ids"]) == loads[0]
    assert len(loads) == 2


def test_rows_are_opened_by_one_manifest_and_of_a_wrong_name_all_tell_what_there_is(
    url: str, tmp_path: Path
):
    _rows(url, "npy")
    known = [path.parents[2].name for path in tmp_path.glob("cache/**/_tokflow/manifest.json")]

    with pytest.raises(MissingOutputError, match=r"no 'bn' in s3://.*, which has arrow, npy"):
        _rows(url, "bn")

    assert known == ["npy"]

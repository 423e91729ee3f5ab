"""Outputs put at a URL: whole, by one writer, and joined there of segments that lie there."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import ranges
from tokflow.exports import export_segments
from tokflow.pipeline import output_tasks, tasks, writers
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store.remote import object_store as stores
from tokflow.store.remote.cache_limit import make_room
from tokflow.store.remote.places import CACHE_VARIABLE, place_of
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import content
from tokflow_tests.tiny import build, declare

TEXTS = [f"text {number} {'ä' * (number % 7)}" for number in range(50)]

PARQUET = {"format": "parquet", "shards": 9, "sequences_per_group": 30}


@pytest.fixture(autouse=True)
def _files_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 300)
    monkeypatch.setattr(export_segments, "SEGMENT_TOKENS", 300)
    monkeypatch.setattr(tasks, "MADE_TOGETHER_BYTES", 0)


def _declared(folder: Path, store: str) -> Dataset:
    return declare(folder, {"a.jsonl": TEXTS}, exports=[PARQUET], store=store)


def test_segments_are_joined_on_the_server_and_are_gone_then(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = _declared(tmp_path, f"{object_store.url}/store")
    joined: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(output_tasks, "KEPT_HERE_BYTES", 0)
        patch.setattr(stores.ObjectStore, "refresh_outputs", _on_another_machine(there, joined))
        assert not build(there).failed

    assert joined == ["tokens", "exports"]
    _check_is_as_here(there, tmp_path)
    keys = object_store.keys()
    assert not [key for key in keys if ".segments/" in key]


def _check_is_as_here(there: Dataset, folder: Path) -> None:
    """Compare every output with that of a store on this disk."""
    here = _declared(folder, "here")
    assert not build(here).failed
    objects = BuildGraph(there)
    for output in BuildGraph(here).outputs():
        twin = objects.output(output.stage, output.name, output.packing)
        twin.open().fetch()
        assert content(twin.folder) == content(output.folder)


def _on_another_machine(dataset: Dataset, joined: list[str]) -> Any:
    fetch = stores.ObjectStore.refresh_outputs

    def fetch_there(store: stores.ObjectStore, folders: Sequence[Path]) -> None:
        """Have the manifests alone, and what others write now."""
        joined.append(folders[0].relative_to(dataset.folder).parts[0])
        shutil.rmtree(folders[0].parent)
        dataset.store.refresh(dataset.folder)
        for folder in folders:
            unfinished = folder.with_name(f".{folder.name}.aaaaaaaa.1.bbbbbbbb.tmp")
            shutil.copytree(folder, unfinished)
        fetch(store, folders)

    return fetch_there


def test_segments_that_one_machine_makes_stay_there_and_a_killed_run_goes_on(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = _declared(tmp_path, f"{object_store.url}/store")
    write, made = writers.write_token_shard, []

    def is_killed(*arguments: Any, segment: Any, **more: Any) -> None:
        made.append(segment.number)
        if len(made) == 3:
            raise KeyboardInterrupt
        write(*arguments, segment=segment, **more)

    monkeypatch.setattr(writers, "write_token_shard", is_killed)
    with pytest.raises(KeyboardInterrupt):
        build(there)
    keys = object_store.keys()
    assert not [key for key in keys if "/tokens/" in key]
    [kept] = there.folder.glob("tokens/a.jsonl/.*.segments-here")
    assert place_of(kept / "00000") is None
    make_room(Path(os.environ[CACHE_VARIABLE]))

    with object_store.counted() as counted:
        assert not build(there).failed

    assert made[:4] == [0, 1, 2, 2]
    assert made[3:] == [*range(2, made[-1] + 1)]
    assert counted["COPY"] == 0
    assert not list(there.folder.rglob("*.segments*"))
    _check_is_as_here(there, tmp_path)


def test_gc_removes_segments_that_stayed_here(tmp_path: Path, object_store: ObjectStore) -> None:
    there = _declared(tmp_path, f"{object_store.url}/store")
    build(there)
    left = there.folder / "tokens/a.jsonl/.0123456789abcdef.segments-here"
    (left / "00000").mkdir(parents=True)
    (left / "00000/tokens-00000.bin").write_bytes(b"12345")
    before = object_store.keys()

    found = find_garbage(there, keep=1)
    remove_all(there.store, found)

    assert found == {left: 5}
    assert not left.exists()
    assert object_store.keys() == before


@pytest.mark.parametrize("kept_here_bytes", [0, 10**9])
def test_so_it_is_where_worker_processes_make_and_join_them(
    kept_here_bytes: int,
    tmp_path: Path,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(output_tasks, "KEPT_HERE_BYTES", kept_here_bytes)
    there = _declared(tmp_path, f"{object_store.url}/store")

    with object_store.counted() as counted:
        assert not build_dataset(there, jobs=2).failed

    assert (counted["COPY"] > 0) == (kept_here_bytes == 0)
    keys = object_store.keys()
    assert not [key for key in keys if ".segments" in key]
    assert not list(there.folder.rglob("*.segments*"))
    _check_is_as_here(there, tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_build_goes_to_the_url_though_the_cache_was_removed_since_it_was_declared(
    jobs: int, tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)  # by other processes
    there = _declared(tmp_path, f"{object_store.url}/store")
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    assert not build_dataset(there, jobs=jobs).failed

    assert any("/exports/" in key for key in object_store.contents())
    shutil.rmtree(tmp_path / "cache")
    assert make_plan(there).is_up_to_date

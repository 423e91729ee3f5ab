"""Outputs put at a URL: whole, by one writer, and joined there of segments that lie there."""

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import ranges
from tokflow.exports import stage
from tokflow.exports.reading import find_export
from tokflow.pipeline import output_tasks, tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store.remote import CACHE_VARIABLE, objects_at, place_at
from tokflow.store.remote import remote_store as stores
from tokflow.store.remote.cache import make_room
from tokflow.store.remote.publication import publish
from tokflow.store.requests import S3Client
from tokflow.tokens.stage import TokensWriter
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import content, store_of
from tokflow_tests.tiny import build, declare, declare_small

TEXTS = [f"text {number} {'ä' * (number % 7)}" for number in range(50)]

PARQUET = {"format": "parquet", "shards": 9, "sequences_per_group": 30}


@pytest.fixture(autouse=True)
def _files_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 300)
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 300)
    monkeypatch.setattr(tasks, "MADE_TOGETHER_BYTES", 0)


def _declared(folder: Path, store: str) -> Dataset:
    return declare(folder, {"a.jsonl": TEXTS}, exports=[PARQUET], store=store)


def test_a_manifest_is_put_behind_all_files(tmp_path: Path, object_store: ObjectStore) -> None:
    there = declare(tmp_path, {"a.jsonl": ["a"]}, store=f"{object_store.url}/store")
    object_store.fail("403", "PUT", "*/tokens.bin", times=None)

    [failed] = build_dataset(there).failed

    assert failed.stage == "tokens"
    keys = object_store.keys()
    of_tokens = [key for key in keys if "/tokens/" in key]
    assert of_tokens
    assert not [key for key in of_tokens if "manifest" in key]


def test_segments_are_joined_on_the_server_and_are_gone_then(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = _declared(tmp_path, f"{object_store.url}/store")
    joined: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(output_tasks, "KEPT_HERE_BYTES", 0)
        patch.setattr(stores.RemoteStore, "refresh_outputs", _on_another_machine(there, joined))
        assert not build(there).failed

    assert joined == ["tokens", "exports"]
    _check_is_as_here(there, tmp_path)
    keys = object_store.keys()
    assert not [key for key in keys if ".segments/" in key]


def _check_is_as_here(there: Dataset, folder: Path) -> None:
    """Compare every output with that of a store on this disk."""
    here = _declared(folder, "here")
    assert not build(here).failed
    objects = graph_of(there)
    for output in graph_of(here).outputs():
        twin = objects.named(output.stage, output.name, output.packing)
        twin.open().fetch()
        assert content(twin.folder) == content(output.folder)


def _on_another_machine(dataset: Dataset, joined: list[str]) -> Any:
    fetch = stores.RemoteStore.refresh_outputs

    def fetch_there(store: stores.RemoteStore, folders: Sequence[Path]) -> None:
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
    write, made = TokensWriter.write, []

    def is_killed(self: TokensWriter, share: Any, *more: Any) -> None:
        made.append(share.number)
        if len(made) == 3:
            raise KeyboardInterrupt
        write(self, share, *more)

    monkeypatch.setattr(TokensWriter, "write", is_killed)
    with pytest.raises(KeyboardInterrupt):
        build(there)
    keys = object_store.keys()
    assert not [key for key in keys if "/tokens/" in key]
    assert [*there.folder.glob("tokens/a.jsonl/.*.segments-here")]
    make_room(Path(os.environ[CACHE_VARIABLE]))

    with object_store.counted() as counted:
        assert not build(there).failed

    assert made[:4] == [0, 1, 2, 2]
    assert made[3:] == [*range(2, made[-1] + 1)]
    assert counted["COPY"] == 0
    assert not list(there.folder.rglob("*.segments*"))
    _check_is_as_here(there, tmp_path)


def test_so_it_is_where_worker_processes_make_and_join_them_though_the_cache_was_removed(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    there = _declared(tmp_path, f"{object_store.url}/store")
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)  # since it was declared

    with object_store.counted() as counted:
        assert not build_dataset(there, jobs=2).failed

    assert counted["COPY"] == 0
    keys = object_store.keys()
    assert not [key for key in keys if ".segments" in key]
    assert not list(there.folder.rglob("*.segments*"))
    _check_is_as_here(there, tmp_path)


DAY = 86_400
OTHER = "0123456789abcdef"


def test_outputs_that_are_not_used_go_at_the_url_and_all_others_stay(
    tmp_path: Path, object_store: ObjectStore
):
    store = f"{object_store.url}/store"
    made = declare_small(tmp_path, store=store, exports=["bin", "parquet"])
    build_dataset(made)
    expected = object_store.keys()
    other = {"packing": {"sequence_length": 16}, "exports": ["parquet"]}
    build_dataset(declare_small(tmp_path, store=store, **other))

    now = declare_small(tmp_path, store=store, **other)
    remove_all(now.store, find_garbage(now, keep=2))
    made = declare_small(tmp_path, store=store, exports=["bin", "parquet"])
    build_dataset(made)  # and so `latest` leads where it led
    remove_all(made.store, find_garbage(made, keep=0))

    assert object_store.keys() == expected
    shutil.rmtree(tmp_path / "cache")
    made = declare_small(tmp_path, store=store, exports=["bin", "parquet"])
    assert make_plan(made).is_up_to_date
    assert find_garbage(made, keep=0) == {}


@pytest.fixture
def leftovers(tmp_path: Path, object_store: ObjectStore) -> tuple[Path, dict[Path, int]]:
    """The folder of a dataset at a URL, and what writers left there that were killed."""
    dataset = declare_small(tmp_path, store=f"{object_store.url}/store", exports=["bin"])
    build_dataset(dataset)
    objects = objects_at(f"{object_store.url}/store/small")
    [made] = (dataset.folder / "tokens/a.jsonl").iterdir()
    segments = f"tokens/b.jsonl/.{OTHER}.segments"
    bytes_of = {
        f"tokens/a.jsonl/{made.name}/{OTHER}/sub/tokens.bin": 4,  # of other bytes
        f"split/a.jsonl/{OTHER}/{OTHER}/spans.parquet": 5,
        f"split/a.jsonl/{OTHER}/{OTHER}/_tokflow/run.json": 1,
        f"{segments}/00000/{OTHER}/tokens.bin": 6,
        f"manifests/{segments}/00000.json": 2,
        "notes/mine.txt": 3,
    }
    for key, num_bytes in bytes_of.items():
        objects.put(key, b"x" * num_bytes)
    begun = f"tokens/a.jsonl/{OTHER}/{OTHER}/tokens.bin"
    S3Client(object_store.url).ask("create_multipart_upload", Key=f"store/small/{begun}")
    found = {
        f"tokens/a.jsonl/{made.name}/{OTHER}": 4,
        f"split/a.jsonl/{OTHER}/{OTHER}": 6,
        segments: 8,
        begun: 0,
    }
    return dataset.folder, {dataset.folder / path: num for path, num in found.items()}


def test_what_writers_left_is_found_and_removed_and_nothing_else(
    leftovers: tuple[Path, dict[Path, int]], object_store: ObjectStore
):
    folder, expected = leftovers
    before = object_store.keys()

    assert store_of(folder).unfinished(folder, seconds=-1) == expected
    for path in expected:
        store_of(path).remove_all([path], seconds=-1)

    assert store_of(folder).unfinished(folder, seconds=-1) == {}
    gone = {*before} - {*object_store.keys()}
    assert len(gone) == 5
    assert all(OTHER in key for key in gone)


def test_what_somebody_may_be_writing_is_neither_found_nor_removed(
    leftovers: tuple[Path, dict[Path, int]], object_store: ObjectStore
):
    folder, found = leftovers
    young = {path: num for path, num in found.items() if num}  # of uploads moto says 2010
    before = object_store.keys()

    assert not store_of(folder).unfinished(folder, seconds=DAY).keys() & young.keys()
    for path in young:
        if path.suffix != ".zst":  # is written once, and was found to be old
            store_of(path).remove_all([path], seconds=DAY)

    assert object_store.keys() == before


def test_an_output_made_again_while_it_is_removed_is_whole_or_not_there(
    tmp_path: Path, object_store: ObjectStore
):
    dataset = declare_small(tmp_path, store=f"{object_store.url}/store", exports=["bin"])
    build_dataset(dataset)
    [export] = find_export(
        dataset.store.shown(dataset.folder / "exports/bin/latest")
    ).folder.parent.glob("[0-9a-f]*")
    made = {key: of for key, of in object_store.contents().items() if export.name in key}

    def make_again() -> None:
        for key, data in made.items():
            object_store.put(key, data)

    for kind, number in (("LIST", 1), ("DELETE", 1), ("LIST", 2), ("DELETE", 2)):
        make_again()
        object_store.age(seconds=60)
        dataset.store.refresh(dataset.folder)
        fault = object_store.fail("slow", kind, first=number, then=make_again)

        dataset.store.remove_all([export], seconds=0)

        assert fault.met == 1
        there = made.keys() & {*object_store.keys()}
        is_committed = any("/manifests/" in key for key in there)
        assert there == made.keys() if is_committed else True
        assert is_committed == ((kind, number) == ("DELETE", 1))
        object_store.recover()


def test_machines_that_drop_tokens_and_make_them_again_at_once_leave_a_whole_output(
    tmp_path: Path, object_store: ObjectStore
):
    dataset = declare_small(tmp_path, store=f"{object_store.url}/store", exports=["bin"])
    build_dataset(dataset)
    [folder] = (dataset.folder / "tokens/a.jsonl").glob("[0-9a-f]*")
    output = dataset.store.read(folder)
    output.fetch()
    again, place = Path(shutil.copytree(folder, tmp_path / "again")), place_at(dataset.store.name)
    whole = {key: of for key, of in object_store.contents().items() if folder.name in key}
    drop = partial(dataset.store.drop, output, ["tokens.bin"])
    drop()
    without = {key: of for key, of in object_store.contents().items() if folder.name in key}
    [manifest] = whole.keys() & without.keys()
    files = {of: {*there} - {manifest} for of, there in ((1, whole), (2, without))}

    def begin(there: dict[str, bytes]) -> None:
        object_store.recover()
        for key in (*files[1], *files[2]):
            object_store.remove(key)
        put(there)
        dataset.store.refresh_outputs([folder])

    def put(there: dict[str, bytes]) -> None:
        for key in sorted(there, key=lambda of: of == manifest):
            object_store.put(key, there[key])

    def drop_there() -> None:
        put(without)
        end_drop()

    def end_drop() -> None:
        for key in files[1]:
            object_store.remove(key)
        if object_store.contents()[manifest] == whole[manifest]:
            put(without)

    def publish_again() -> None:
        publish(place, Path(shutil.copytree(again, tmp_path / "new", dirs_exist_ok=True)), folder)

    cases: list[tuple[dict[str, bytes], Callable[[], object], Callable[[], object]]] = [
        (whole, drop, drop_there),
        (whole, drop, partial(put, whole)),
        (without, publish_again, end_drop),
    ]
    for number, (before, do, meanwhile) in enumerate(cases):
        for request in range(1, 99):
            begin(before)
            fault = object_store.fail("slow", first=request, then=meanwhile)
            do()
            there = object_store.contents()
            is_whole = there[manifest] == whole[manifest]
            lacking = files[1 if is_whole else 2] - there.keys()
            assert (number, request, lacking) == (number, request, set())
            if not fault.met:
                break
        assert request > 4

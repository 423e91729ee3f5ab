"""Objects at a URL that belong to no output are found, and removed unless somebody writes there."""

import shutil
from pathlib import Path

import pytest

from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store.remote.objects import Objects
from tokflow.store.s3_client import S3Client
from tokflow.store.stored_outputs import find_export
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import store_of
from tokflow_tests.tiny import declare_small

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
def leftovers(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[Path, int]]:
    """The folder of a dataset at a URL, and what writers left there that were killed."""
    dataset = declare_small(tmp_path, store=f"{object_store.url}/store", exports=["bin"])
    build_dataset(dataset)
    monkeypatch.setattr("tokflow.store.remote.packs.WORTH_A_PACK", 5)
    objects = Objects(f"{object_store.url}/store/small")
    [made] = (dataset.folder / "tokens/a.jsonl").iterdir()
    segments = f"tokens/b.jsonl/.{OTHER}.segments"
    bytes_of = {
        f"tokens/a.jsonl/{made.name}/{OTHER}/sub/tokens.bin": 4,  # of other bytes
        f"split/a.jsonl/{OTHER}/{OTHER}/spans.parquet": 5,
        f"split/a.jsonl/{OTHER}/{OTHER}/_tokflow/run.json": 1,
        f"{segments}/00000/{OTHER}/tokens.bin": 6,
        f"manifests/{segments}/00000.json": 2,
        "packs/1-2-01234567.zst": 7,  # of the year 1970
        f"packs/1-{2**62}-01234567.zst": 9,
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
        "packs/1-2-01234567.zst": 7,
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
    assert len(gone) == 6
    assert all(OTHER in key or "/1-2-" in key for key in gone)


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


@pytest.mark.parametrize("moment", [("LIST", 1), ("DELETE", 1), ("LIST", 2), ("DELETE", 2)])
def test_an_output_made_again_while_it_is_removed_is_whole_or_not_there(
    moment: tuple[str, int], tmp_path: Path, object_store: ObjectStore
):
    dataset = declare_small(tmp_path, store=f"{object_store.url}/store", exports=["bin"])
    build_dataset(dataset)
    [export] = find_export(
        dataset.store.shown(dataset.folder / "exports/bin/latest")
    ).folder.parent.glob("[0-9a-f]*")
    object_store.age(seconds=60)
    made = {key: of for key, of in object_store.contents().items() if export.name in key}

    def make_again() -> None:
        for key, data in made.items():
            object_store.put(key, data)

    kind, number = moment
    fault = object_store.fail("slow", kind, first=number, then=make_again)
    dataset.store.remove_all([export], seconds=0)

    assert fault.met == 1
    there = made.keys() & {*object_store.keys()}
    is_committed = any("/manifests/" in key for key in there)
    assert there == made.keys() if is_committed else True
    assert is_committed == (moment == ("DELETE", 1))

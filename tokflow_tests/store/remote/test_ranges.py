"""Ranges of large files at a URL: what is looked at comes, and the whole where that is much."""

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.inspection import inspect_output
from tokflow.audit.trace import trace_tokens
from tokflow.errors import CorruptOutputError, MissingOutputError
from tokflow.exports import index
from tokflow.loaders import Loader, open_rows, open_tokens
from tokflow.store import few_numbers
from tokflow.store.integrity import check_files
from tokflow.store.manifest import read_manifest
from tokflow.store.remote import blocks_here, part_files, ranges
from tokflow.store.remote.addresses import local_path
from tokflow.store.remote.cache_limit import make_room
from tokflow.store.remote.cached_files import fetched
from tokflow.store.remote.objects import Objects, RemoteStoreError
from tokflow.store.remote.ranges import is_far, read_ranges
from tokflow.store.remote.rereading import broken_there
from tokflow.store.stored_outputs import find_output
from tokflow_tests.object_store import ObjectStore, another_machine
from tokflow_tests.tiny import build, declare

BLOCK = 64

STREAMS: dict[str, dict[str, Any]] = {
    "bin": {},
    "npy": {},
    "megatron": {},
    "llmc": {},
    "archai": {},
    "olmo": {},
    "datatrove": {},
    "modalities": {},
}
ROWS = {"name": "rows", "format": "npy", "layout": "sequences"}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_here, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(ranges, "SMALL_BYTES", 4 * BLOCK)
    monkeypatch.setattr(few_numbers, "NEAR_BYTES", 16)


def _build(folder: Path, store: ObjectStore, exports: list[Any], **attributes: Any) -> str:
    """Build a dataset of 40 texts at a URL, of which this machine then has nothing."""
    texts = [f"{number:0250d}" for number in range(40)]
    store_url = f"{store.url}/store"
    build(declare(folder, {"a.jsonl": texts}, exports=exports, store=store_url, **attributes))
    (folder / "cache").rename(folder / "elsewhere")
    return f"{store_url}/tiny"


@pytest.fixture(scope="module")
def there(
    tmp_path_factory: pytest.TempPathFactory, object_server: ObjectStore
) -> tuple[ObjectStore, Path]:
    """A bucket into which another machine has built a `bin` of 20,080 bytes, and its folder."""
    folder = tmp_path_factory.mktemp("there")
    with another_machine(object_server, folder) as store:
        _build(folder, store, ["bin"])
    return store, folder


@pytest.fixture(scope="module")
def bucket(there: tuple[ObjectStore, Path]) -> ObjectStore:
    return there[0]


@pytest.fixture
def url(object_store: ObjectStore) -> str:
    return f"{object_store.url}/store/tiny"


def _output(url: str, name: str = "bin") -> Path:
    return find_output(local_path(f"{url}/exports/{name}")).folder


def _here(folder: Path, name: str = "bin") -> Path:
    """Return the export on the machine that built it."""
    [found] = folder.glob(f"elsewhere/*/tiny/exports/{name}")
    return found


def _received(store: ObjectStore, before: int, ending: str) -> int:
    return sum(of.received for of in store.requests[before:] if of.key.endswith(ending))


def test_of_each_format_that_is_mapped_no_more_comes_than_is_looked_at(
    tmp_path: Path, object_store: ObjectStore
):
    formats = [{"format": name, **options} for name, options in STREAMS.items()]
    store = object_store.with_new_bucket()
    url = _build(tmp_path, store, [*formats, ROWS])

    for name in (*STREAMS, "rows"):
        length = None if name == "rows" else 4
        here = open_rows(_here(tmp_path, name), sequence_length=length)
        there = open_rows(f"{url}/exports/{name}", sequence_length=length)
        before = len(object_store.requests)
        for chosen in ([5, 90, 7], slice(-3, None), [len(here) - 1]):
            assert {of: values.tolist() for of, values in there[chosen].items()} == {
                of: values.tolist() for of, values in here[chosen].items()
            }, name
        received = sum(of.received for of in object_store.requests[before:])
        files = read_manifest(_output(url, name)).files
        assert received < sum(of.num_bytes for of in files.values() if of.num_bytes > 20_000) / 2

    assert not [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_size > 60_000]


def test_token_arrays_read_what_is_looked_at_and_all_where_that_is_much(
    url: str, there: tuple[ObjectStore, Path], object_store: ObjectStore
):
    whole = _here(there[1]) / "latest" / "train.bin"
    expected = np.fromfile(whole, np.uint16)
    tokens, before = open_tokens(f"{url}/exports/bin"), len(object_store.requests)

    assert tokens[7] == expected[7]
    assert tokens[3:700:90].tolist() == expected[3:700:90].tolist()
    assert tokens[[9_000, 1, 1]].tolist() == expected[[9_000, 1, 1]].tolist()
    assert tokens.take([5, 50], [2, 40]).tolist() == [*expected[5:7], *expected[50:90]]
    assert tokens[7:7].tolist() == []
    assert 0 < _received(object_store, before, ".bin") < len(expected) * 2 / 8
    assert not (_output(url) / "train.bin").exists()

    assert tokens[:].tolist() == expected.tolist()
    assert (_output(url) / "train.bin").read_bytes() == whole.read_bytes()
    with object_store.counted() as count:
        assert tokens[[9_000, 1]].tolist() == expected[[9_000, 1]].tolist()
    assert not count


def test_who_reads_on_has_the_whole_by_few_requests(url: str, object_store: ObjectStore):
    tokens, before = open_tokens(f"{url}/exports/bin"), len(object_store.requests)

    total = sum(int(tokens[at : at + 8].sum()) for at in range(0, len(tokens), 8))

    assert total == int(tokens[:].sum())
    assert len([of for of in object_store.requests[before:] if of.key.endswith(".bin")]) < 10
    assert _received(object_store, before, ".bin") < 20_080 * 9 / 8 + BLOCK
    assert not [*_output(url).glob(".*")]


def test_a_training_has_whole_files_that_were_compared(url: str, object_store: ObjectStore):
    rows, before = open_rows(f"{url}/exports/bin", sequence_length=4), len(object_store.requests)

    with Loader(rows, batch_size=2, seed=1) as loader:
        next(loader)

    keys = [of.key for of in object_store.requests[before:] if of.key.endswith(".bin")]
    assert len(keys) == 1
    assert (_output(url) / "train.bin").exists()


def test_blocks_that_were_damaged_on_the_way_are_found_when_the_whole_comes(
    url: str, object_store: ObjectStore
):
    path = _output(url) / "train.bin"
    object_store.fail("flip", "GET", "*train.bin")
    damaged = read_ranges(path, [(0, BLOCK)])

    check_files(find_output(path.parent))

    assert read_ranges(path, [(0, BLOCK)]) != damaged
    assert hashlib.sha256(path.read_bytes()).hexdigest() == (
        read_manifest(path.parent).files["train.bin"].sha256
    )


def test_ranges_that_did_not_come_are_asked_for_again(url: str, object_store: ObjectStore):
    path = _output(url) / "train.bin"
    whole = _bytes_there(object_store, "train.bin")
    read_ranges(path, [(0, 10)])
    object_store.fail("403", "GET", "*train.bin", times=None)
    with pytest.raises(RemoteStoreError, match=r"train\.bin"):
        read_ranges(path, [(0, 10), (9_000, 9_300)])

    object_store.recover()

    assert read_ranges(path, [(0, 10), (9_000, 9_300)]) == [whole[:10], whole[9_000:9_300]]


def _bytes_there(store: ObjectStore, ending: str) -> bytes:
    [found] = [data for key, data in store.contents().items() if key.endswith(ending)]
    return found


def test_those_that_want_one_block_at_once_fetch_it_once(url: str, object_store: ObjectStore):
    path = _output(url) / "train.bin"
    object_store.fail("slow", "GET", seconds=0.05, times=None)

    with object_store.counted() as count, ThreadPoolExecutor(8) as pool:
        found = {tuple(of) for of in pool.map(lambda _: read_ranges(path, [(5, 50)]), range(8))}

    assert len(found) == 1
    assert count["GET"] == 1


@pytest.mark.parametrize("num_bytes", [10, 20_080 + 314 + 16])
def test_what_a_killed_process_left_is_no_block(num_bytes: int, url: str):
    path = _output(url) / "train.bin"
    part = part_files.part_path(path)
    part.write_bytes(b"\x01" * num_bytes)

    [data] = read_ranges(path, [(100, 200)])

    assert data != b"\x01" * 100
    assert fetched(path).read_bytes()[100:200] == data
    assert not part.exists()


def test_blocks_count_in_the_limit_of_the_cache_and_go_when_they_were_not_used(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = _output(url) / "train.bin"
    expected = read_ranges(path, [(100, 200)])
    for each in (tmp_path / "cache").rglob("*"):
        os.utime(each, (each.stat().st_mtime - 86_400,) * 2, follow_symlinks=False)
    monkeypatch.setenv("TOKFLOW_CACHE_BYTES", "1")

    make_room(tmp_path / "cache")

    assert not part_files.part_path(path).exists()
    assert read_ranges(path, [(100, 200)]) == expected


def test_verify_asks_again_for_what_blocks_are_of(url: str, object_store: ObjectStore):
    path = _output(url) / "train.bin"
    read_ranges(path, [(0, 2_000)])
    before = len(object_store.requests)

    assert broken_there([find_output(path.parent)]) == [[]]

    assert _received(object_store, before, "train.bin") == 20_080


def test_an_object_that_is_cut_short_is_an_error_that_names_it(url: str, object_store: ObjectStore):
    path, objects = _output(url) / "train.bin", Objects(object_store.url)
    [key] = [key for key in object_store.contents() if key.endswith("train.bin")]
    whole = _bytes_there(object_store, "train.bin")
    objects.put(key, b"short")

    with pytest.raises(CorruptOutputError, match=r"s3://.*train\.bin"):
        read_ranges(path, [(9_000, 9_100)])

    objects.put(key, whole)


def test_of_an_output_that_is_gone_it_is_said_that_it_is_missing(url: str):
    path = _output(url).with_name("0123456789abcdef") / "train.bin"

    for look in (is_far, lambda path: read_ranges(path, [(0, 10)]), fetched):
        with pytest.raises(MissingOutputError, match="0123456789abcdef: expected a finished"):
            look(path)


def test_trace_and_inspect_of_large_files_are_those_of_a_disk_and_bring_little(
    url: str, there: tuple[ObjectStore, Path], tmp_path: Path
):
    here, elsewhere = _here(there[1]), local_path(f"{url}/exports/bin")
    spread = {"part": "train", "start": 5_000, "stop": 5_003}

    traced, inspected = trace_tokens(elsewhere, **spread), inspect_output(elsewhere)

    assert traced == trace_tokens(here, **spread)
    assert inspected.excerpts == inspect_output(here).excerpts
    assert not [*(tmp_path / "cache").rglob("t*.bin")]


def test_of_a_large_index_the_footer_and_a_row_group_come(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index, "INDEX_ROWS_PER_GROUP", 200)
    monkeypatch.setattr(ranges, "SHARE", 2)
    rows = [{"text": "a", "id": os.urandom(100).hex()} for _ in range(4_000)]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = {"keep_columns": ["id"]}
    object_store = object_store.with_new_bucket()
    store = f"{object_store.url}/store"
    build(declare(tmp_path, documents=documents, exports=["bin"], store=store))
    shutil.rmtree(tmp_path / "cache")
    path = _output(f"{store}/tiny") / "_tokflow/index.parquet"

    [entry] = index.read_index(path, "train", 5_000, 5_001)

    assert (entry["row"], entry["id"]) == (2_500, rows[2_500]["id"])
    whole = _bytes_there(object_store, "_tokflow/index.parquet")
    assert 0 < _received(object_store, 0, "_tokflow/index.parquet") < len(whole) / 3


def test_numbers_on_this_disk_are_mapped(tmp_path: Path):
    (tmp_path / "numbers").write_bytes(bytes(20_000))

    found = few_numbers.few_numbers(tmp_path / "numbers", np.uint16)

    assert not few_numbers.is_few(found)

"""Ranges of large files at a URL: what is looked at comes, and none of it is kept."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.inspection import inspect_output
from tokflow.audit.trace import trace_tokens
from tokflow.errors import CorruptOutputError
from tokflow.exports import index
from tokflow.exports.reading import open_export
from tokflow.loaders import open_rows, open_tokens
from tokflow.store.remote import cached_files, objects_at
from tokflow.store.remote.cached_files import read_range
from tokflow.store.requests import RemoteStoreError
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import find_output
from tokflow_tests.object_store import ObjectStore, another_machine
from tokflow_tests.outputs import place_of
from tokflow_tests.tiny import build, declare

STREAMS = ["bin", "npy", "megatron", "llmc", "archai", "olmo", "datatrove", "modalities"]
ROWS = {"name": "rows", "format": "npy", "layout": "sequences"}


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_files, "SMALL_BYTES", 256)
    monkeypatch.setattr(cached_files, "READ_AHEAD", 64)


def _build(folder: Path, store: ObjectStore, exports: list[Any]) -> str:
    """Build a dataset of 40 texts at a URL, of which this machine then has nothing."""
    texts = [f"{number:0250d}" for number in range(40)]
    store_url = f"{store.url}/store"
    build(declare(folder, {"a.jsonl": texts}, exports=exports, store=store_url))
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


def _output(url: str) -> StoredOutput:
    return find_output(f"{url}/exports/bin")


def _here(folder: Path, name: str = "bin") -> Path:
    """Return the export on the machine that built it."""
    [found] = folder.glob(f"elsewhere/*/tiny/exports/{name}")
    return found


def _received(store: ObjectStore, before: int, ending: str = "") -> int:
    return sum(of.received for of in store.requests[before:] if of.key.endswith(ending))


def test_of_each_format_that_is_mapped_no_more_comes_than_the_beginning(
    tmp_path: Path, object_store: ObjectStore
):
    url = _build(tmp_path, object_store.with_new_bucket(), [*STREAMS, ROWS])

    for name in (*STREAMS, "rows"):
        here, there = (open_export(of) for of in (_here(tmp_path, name), f"{url}/exports/{name}"))
        before = len(object_store.requests)
        found, expected = (next(of.between("train", 0, 100)) for of in (there, here))
        assert found["token_ids"].tolist() == expected["token_ids"].tolist(), name
        files = here.manifest.files
        large = sum(of.num_bytes for of in files.values() if of.num_bytes > 20_000)
        assert _received(object_store, before) < large / 2, name

    assert not [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_size > 20_000]


def test_loaders_have_whole_files_that_were_compared(
    url: str, there: tuple[ObjectStore, Path], object_store: ObjectStore
):
    whole = _here(there[1]) / "latest" / "train.bin"
    expected = np.fromfile(whole, np.uint16)
    rows, tokens = (
        open_rows(f"{url}/exports/bin", sequence_length=4),
        open_tokens(f"{url}/exports/bin"),
    )
    before = len(object_store.requests)

    assert rows[5]["input_ids"].tolist() == expected[20:24].tolist()
    assert tokens[[9_000, 1, 1]].tolist() == expected[[9_000, 1, 1]].tolist()
    assert _received(object_store, before, ".bin") == 20_080
    assert (_output(url).folder / "train.bin").read_bytes() == whole.read_bytes()


def test_a_range_is_asked_for_once_and_not_kept(url: str, object_store: ObjectStore):
    output = _output(url)
    path = output.folder / "train.bin"
    [key] = [key for key in object_store.contents() if key.endswith("train.bin")]
    whole, before = object_store.contents()[key], len(object_store.requests)

    numbers = output.numbers("train.bin", np.uint16)

    assert (
        numbers[4_500:4_650].tobytes()
        == read_range(place_of(path), output, "train.bin", 9_000, 9_300)
        == whole[9_000:9_300]
    )
    assert _received(object_store, before, ".bin") == 600
    assert [of.name for of in path.parent.iterdir()] == ["_tokflow"]
    assert numbers[[9_000, 1]].tobytes() == whole[18_000:18_002] + whole[2:4]
    assert path.read_bytes() == whole


def test_ranges_that_do_not_come_are_errors_that_name_the_file(url: str, object_store: ObjectStore):
    output, objects = _output(url), objects_at(object_store.url)
    place = place_of(output.folder)
    [key] = [key for key in object_store.contents() if key.endswith("train.bin")]
    whole = object_store.contents()[key]

    object_store.fail("403", "GET", "*train.bin", times=None)
    with pytest.raises(RemoteStoreError, match=r"train\.bin"):
        read_range(place, output, "train.bin", 0, 10)
    object_store.recover()
    objects.put(key, b"short")
    with pytest.raises(CorruptOutputError, match=r"s3://.*train\.bin"):
        read_range(place, output, "train.bin", 9_000, 9_100)
    objects.put(key, whole)


def test_trace_and_inspect_of_large_files_are_those_of_a_disk_and_bring_little(
    url: str, there: tuple[ObjectStore, Path], tmp_path: Path
):
    here, elsewhere = _here(there[1]), f"{url}/exports/bin"
    spread = {"part": "train", "start": 5_000, "stop": 5_003}

    traced, inspected = trace_tokens(elsewhere, **spread), inspect_output(elsewhere)

    assert traced == trace_tokens(here, **spread)
    assert inspected.excerpts == inspect_output(here).excerpts
    assert not [*(tmp_path / "cache").rglob("t*.bin")]


def test_of_a_large_index_the_footer_and_a_row_group_come(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index, "INDEX_ROWS_PER_GROUP", 200)
    rows = [{"text": "a", "id": os.urandom(100).hex()} for _ in range(4_000)]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = {"keep_columns": ["id"]}
    object_store = object_store.with_new_bucket()
    store = f"{object_store.url}/store"
    build(declare(tmp_path, documents=documents, exports=["bin"], store=store))
    shutil.rmtree(tmp_path / "cache")
    export = find_output(f"{store}/tiny/exports/bin")

    [entry] = index.read_index(export, "train", 5_000, 5_001)

    assert (entry["row"], entry["id"]) == (2_500, rows[2_500]["id"])
    [whole] = [of for key, of in object_store.contents().items() if key.endswith("index.parquet")]
    assert 0 < _received(object_store, 0, "_tokflow/index.parquet") < len(whole) / 3

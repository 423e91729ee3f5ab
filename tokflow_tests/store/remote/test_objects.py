"""Objects do the same at every kind of store, and whatever a server does once."""

import os
import pickle
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tokflow.store import requests
from tokflow.store.remote import objects_at
from tokflow.store.remote.objects import Objects, Piece
from tokflow.store.requests import RemoteStoreError, S3Client
from tokflow_tests.object_store import UNIT, Failure, ObjectStore, let_parts_be_short
from tokflow_tests.pools.forked import forked

LARGE = np.random.default_rng(1).bytes(11 * UNIT + 5)
"""Of two parts."""

ODD = "x/ü/file+1 #*[%41]?versionId=3"

_FAILURES: dict[str, list[Failure]] = {
    "COMPLETE": ["error in 200"],
    "DELETE": ["error in 200"],
    "GET": ["truncate"],
    "LIST": ["truncate", "503"],
    "COPY": ["error in 200"],
    "PART": ["drop"],
    "PART_COPY": ["error in 200"],
    "PUT": ["409"],
}
"""Beside those that any request may meet."""


@pytest.fixture(autouse=True)
def _short_waits_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(requests, "LONGEST_WAIT_SECONDS", 0.01)
    let_parts_be_short(monkeypatch)


class Strict(MemoryFileSystem):
    """A file system that refuses ranges without a byte, as those of clouds do: past the end of an
    object with a status, as gcsfs and adlfs; empty ones with another error, as adlfs."""

    protocol = "strict"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("strict://", "memory://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options):
        if start is not None and start == end:
            raise ValueError("Required Content-Range response header is missing or malformed.")
        if start is not None and start >= self.size(path):
            raise RangeNotSatisfiableError(path)
        return super().cat_file(path, start=start, end=end, **options)


class RangeNotSatisfiableError(OSError):
    code = 416


@pytest.mark.parametrize("scheme", ["s3", "memory", "strict", "file"])
def test_all_kinds_of_stores_do_the_same(
    scheme: str, tmp_path: Path, object_store: ObjectStore
) -> None:
    fsspec.register_implementation("strict", Strict, clobber=True)
    urls = {
        "s3": f"{object_store.url}/a b/c",
        "memory": f"memory://{uuid.uuid4().hex}/c",
        "strict": f"strict://{uuid.uuid4().hex}/c",
        "file": f"file://{tmp_path}/there",
    }
    check_objects(objects_at(urls[scheme]), tmp_path)


def check_objects(objects: Objects, tmp_path: Path) -> None:
    """Check what objects of every kind do, at a URL below which there is none."""
    assert objects.read("x/none") is None
    assert list(objects.listed("x")) == []
    assert objects.names("x") == []

    assert objects.put_new("x/new", b"first")
    assert objects.put_new("x/new", b"first")
    assert not objects.put_new("x/new", b"other")
    objects.put("x/latest", b"1")
    objects.put("x/latest", b"22")
    path = tmp_path / "file"
    path.write_bytes(LARGE[:1000])
    objects.put_file(path, ODD)
    objects.copy(ODD, "x/copy", 1000)
    objects.put_file(path, "x/all", {10: Piece(ODD, 10, 20)})

    assert objects.read("x/all") == LARGE[:1000]
    assert objects.read("x/new", 1, 3) == b"ir"
    assert objects.read("x/new", 4) == b"t"
    assert objects.read("x/new", 5, 9) == objects.read("x/new", 2, 2) == b""
    assert objects.get_file(ODD, tmp_path / "copy", 1000)
    assert (tmp_path / "copy").read_bytes() == LARGE[:1000]
    assert not objects.get_file("x/none", tmp_path / "none", 1000)
    found = [(each.key, each.num_bytes) for each in objects.listed("x")]
    assert found[:3] == [("x/all", 1000), ("x/copy", 1000), ("x/latest", 2)]
    assert found[3:] == [("x/new", 5), (ODD, 1000)]
    assert objects.names("x") == ["all", "copy", "latest", "new", "ü"]
    objects.remove(["x/all", "x/none", "x/copy", ODD])
    assert [each.key for each in objects.listed("")] == ["x/latest", "x/new"]


def test_large_files_go_and_come_in_parts_and_are_copied_on_the_server(
    tmp_path: Path, object_store: ObjectStore
) -> None:
    objects, path, data = objects_at(f"{object_store.url}/x"), tmp_path / "large", 2 * LARGE
    path.write_bytes(data)
    with object_store.counted() as put:
        objects.put_file(path, "large")
    with object_store.counted() as copied:
        objects.copy("large", "copy", len(data))
    with object_store.counted() as copied_at_once:
        objects.copy("large", "again", 16 * UNIT)
    with object_store.counted() as mixed:
        path.write_bytes(b"<" + data + b">")
        objects.put_file(path, "mixed", {1: Piece("large", 0, len(data))})
    with object_store.counted() as got:
        objects.get_file("copy", tmp_path / "copy", len(data))

    assert put == {"BEGIN": 1, "PART": 3, "COMPLETE": 1}
    assert copied == {"BEGIN": 1, "PART_COPY": 2, "COMPLETE": 1}
    assert copied_at_once == {"COPY": 1}
    assert mixed == {"BEGIN": 1, "PART_COPY": 2, "PART": 2, "COMPLETE": 1}
    assert got == {"GET": 3}
    assert (tmp_path / "copy").read_bytes() == data
    assert objects.read("mixed") == b"<" + data + b">"


@pytest.mark.parametrize("source", ["none", "damaged"])
def test_what_is_to_be_copied_and_is_not_there_whole_is_sent(
    source: str, tmp_path: Path, object_store: ObjectStore
) -> None:
    objects, path = objects_at(object_store.url), tmp_path / "large"
    path.write_bytes(LARGE)
    object_store.put("damaged", LARGE[:-1] + bytes([LARGE[-1] ^ 1]))
    objects.put_file(path, "a", {0: Piece(source, 0, len(LARGE))})
    assert objects.read("a") == LARGE
    assert list(objects.uploads("")) == []


def _put(objects: Objects, path: Path) -> object:
    return objects.put_file(path, "a"), objects.read("a") == LARGE


def _put_new(objects: Objects, path: Path) -> object:
    return objects.put_new("b", b"b"), objects.put_new("b", b"c"), objects.read("b")


def _copied(objects: Objects, path: Path) -> object:
    return objects.copy("source", "c", len(LARGE)), objects.read("c") == LARGE


def _composed(objects: Objects, path: Path) -> object:
    path.write_bytes(LARGE + b"e")
    objects.put_file(path, "e", {0: Piece("source", 0, len(LARGE))})
    return objects.read("e") == LARGE + b"e"


def _got(objects: Objects, path: Path) -> object:
    copy = path.with_name("copy")
    return objects.get_file("source", copy, len(LARGE)), copy.read_bytes() == LARGE


def _removed(objects: Objects, path: Path) -> object:
    objects.put("d", b"d")
    return objects.remove(["d"]), sorted(each.key for each in objects.listed(""))


_SLOW = [pytest.param(act, marks=pytest.mark.crash) for act in (_put, _copied, _composed)]


@pytest.mark.parametrize("act", [_put_new, _got, _removed, *_SLOW])
def test_any_failure_of_any_request_that_may_pass_changes_nothing(
    act: Callable[[Objects, Path], object], tmp_path: Path, object_store: ObjectStore
) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    objects = objects_at(f"{object_store.url}/x")
    objects.put_file(path, "source")
    with object_store.counted() as count:
        expected = act(objects, path)
    for kind in count:
        for failure in ["500", "reset", *_FAILURES.get(kind, [])]:
            objects.remove(["a", "b", "c", "d", "e"])
            fault = object_store.fail(failure, kind, times=2)
            assert act(objects, path) == expected, (kind, failure)
            assert fault.met > 0
            object_store.recover()
            left = list(objects.uploads(""))
            assert bool(left) == ((kind, failure) == ("BEGIN", "reset"))  # its name was lost
            for upload in left:
                objects.abort(upload)


def test_of_many_writers_one_alone_is_told_that_its_bytes_are_there(
    object_store: ObjectStore,
) -> None:
    object_store.fail("reset", "PUT", times=None, chance=0.3)
    object_store.fail("409", "PUT", times=None, chance=0.3)
    texts = [str(i).encode() for i in range(12)]

    def put(text: bytes) -> bool:
        return objects_at(object_store.url).put_new("one", text)

    with ThreadPoolExecutor(12) as pool:
        won = list(pool.map(put, texts))
    object_store.recover()

    assert sum(won) == 1
    assert objects_at(object_store.url).read("one") == texts[won.index(True)]


def test_an_upload_that_fails_leaves_no_parts_and_one_that_was_killed_is_found(
    tmp_path: Path, object_store: ObjectStore
) -> None:
    objects, path = objects_at(f"{object_store.url}/x"), tmp_path / "large"
    path.write_bytes(LARGE)
    object_store.fail("403", "PART", first=2)
    with pytest.raises(RemoteStoreError):
        objects.put_file(path, "a/large")
    assert list(objects.uploads("")) == []

    S3Client(object_store.url).ask("create_multipart_upload", Key="x/a/killed")
    (killed,) = objects.uploads("a")
    assert killed.key == "a/killed"
    objects.abort(killed)
    objects.abort(killed)
    assert list(objects.uploads("")) == []


def test_an_upload_that_is_gone_when_it_is_completed_again_is_an_error(
    tmp_path: Path, object_store: ObjectStore
) -> None:
    objects, path = objects_at(object_store.url), tmp_path / "large"
    path.write_bytes(LARGE)
    object_store.fail("404", "COMPLETE")

    with pytest.raises(RemoteStoreError, match="NoSuchUpload"):
        objects.put_file(path, "large")


def test_a_request_is_made_no_more_often_than_is_said_and_the_log_tells_of_it(
    object_store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    objects = objects_at(f"{object_store.url}/x")
    objects.put("key", b"data")
    object_store.fail("503", times=None)
    with object_store.counted() as count, pytest.raises(RemoteStoreError, match="run again"):
        objects.read("key")

    assert count == {"GET": requests.NUM_TRIES}
    told = {record.getMessage() for record in caplog.records if "trying again" in record.message}
    assert told == {f"{object_store.url}/x: S3Error: SlowDown: as told; trying again"}


def test_objects_that_the_store_keeps_are_named(object_store: ObjectStore) -> None:
    objects = objects_at(object_store.url)
    objects.put("kept", b"")
    object_store.fail("403", "DELETE")
    with pytest.raises(RemoteStoreError, match=r"permits it.*let these credentials"):
        objects.remove(["kept"])


def test_a_forked_process_asks_by_itself(object_store: ObjectStore) -> None:
    objects = objects_at(object_store.url)
    objects.put("a", b"a")

    assert forked(lambda: objects.read("a")) == objects.read("a") == b"a"


_REMEDIES = {
    "no bucket": ("a bucket that is there", "make the bucket"),
    "no permission": ("a store that permits it", "let these credentials"),
    "no server": ("a store that can be reached", "AWS_ENDPOINT_URL"),
    "no credentials": ("credentials in the environment", "set AWS_ACCESS_KEY_ID"),
    "no library": ("the library for gs:// URLs", "pip install 'dagster-tokflow[gcs]'"),
    "never": ("a store that answers", "run again"),
}


@pytest.mark.parametrize("case", _REMEDIES)
def test_errors_say_what_to_do_and_no_credentials(
    case: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = {"no bucket": "s3://none", "no library": "gs://none"}.get(case, object_store.url)
    match case:
        case "no permission":
            object_store.fail("403", times=None)
        case "never":
            object_store.fail("500", times=None)
        case "no server":
            monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        case "no credentials":
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                monkeypatch.delenv(name)
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            monkeypatch.setenv("HOME", str(tmp_path))
    objects = objects_at(f"{url}/x")

    for ask in (lambda: objects.read("key"), lambda: list(objects.listed("key"))):
        with pytest.raises(RemoteStoreError) as caught:
            ask()
        error = caught.value
        assert error.expected == _REMEDIES[case][0]
        assert _REMEDIES[case][1] in error.remedy
        assert error.where == f"{url}/x/key"
        again = pickle.loads(pickle.dumps(error))
        for text in (str(error), repr(error), repr(again), repr(error.fields()), repr(objects)):
            assert "not-to-be-shown" not in text
            assert "tester" not in text
    assert pickle.loads(pickle.dumps(objects)).url == objects.url

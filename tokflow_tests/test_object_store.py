"""The server of objects fails as it is told, and not otherwise."""

import botocore.exceptions
import pytest
import s3fs

from tokflow_tests.object_store import ObjectStore


def _files() -> s3fs.S3FileSystem:
    config = {"retries": {"total_max_attempts": 1}}
    return s3fs.S3FileSystem(skip_instance_cache=True, config_kwargs=config)


_TRIES = {"drop": 2, "reset": 2}
"""aiohttp asks once more where a connection breaks."""


@pytest.mark.parametrize("failure", ["500", "503", "409", "403", "drop", "reset"])
def test_the_second_object_put_meets_the_failure(
    failure: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    files, bucket = _files(), object_store.bucket
    object_store.fail(failure, "PUT", "folder/*", first=2, times=_TRIES.get(failure, 1))

    files.pipe_file(f"{bucket}/folder/a", b"a")
    with pytest.raises((OSError, botocore.exceptions.HTTPClientError, ConnectionError)):
        files.pipe_file(f"{bucket}/folder/b", b"b")
    files.pipe_file(f"{bucket}/folder/c", b"c")

    is_done = failure == "reset"
    there = ["folder/a", "folder/b", "folder/c"] if is_done else ["folder/a", "folder/c"]
    assert object_store.keys() == there


def test_bodies_are_cut_off_and_bits_are_flipped(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    files, path = _files(), f"{object_store.bucket}/a"
    files.pipe_file(path, b"abcd")
    object_store.fail("flip", "GET")
    object_store.fail("truncate", "GET", first=2)

    assert files.cat_file(path) == b"abce"
    with pytest.raises(Exception, match="payload"):
        files.cat_file(path)
    assert files.cat_file(path) == b"abcd"


def test_requests_are_counted_by_what_they_ask_for(object_store: ObjectStore) -> None:
    files, bucket = _files(), object_store.bucket
    with object_store.counted() as count:
        files.pipe_file(f"{bucket}/a", b"a" * (11 << 20), chunksize=5 << 20)
        files.cat_file(f"{bucket}/a", start=0, end=3)
        files.call_s3("copy_object", Bucket=bucket, Key="b", CopySource=f"{bucket}/a")
        files.call_s3("list_objects_v2", Bucket=bucket)
        files.call_s3("delete_object", Bucket=bucket, Key="b")

    parts = {"BEGIN": 1, "PART": 3, "COMPLETE": 1}
    assert count == {**parts, "GET": 1, "COPY": 1, "LIST": 1, "DELETE": 1}
    assert object_store.keys() == ["a"]
    assert _sent_in_parts(object_store) == 11 << 20


def _sent_in_parts(store: ObjectStore) -> int:
    parts = [each for each in store.requests if (each.kind, each.bucket) == ("PART", store.bucket)]
    return sum(each.sent for each in parts)

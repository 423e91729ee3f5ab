"""The server of objects fails as it is told, and not otherwise."""

from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError
from botocore.session import Session

from tokflow_tests.object_store import UNIT, ObjectStore, let_parts_be_short


@pytest.fixture
def client(object_store: ObjectStore) -> Any:
    return Session().create_client("s3", config=Config(retries={"total_max_attempts": 1}))


@pytest.mark.parametrize("failure", ["503", "403", "drop", "reset"])
def test_the_second_object_put_meets_the_failure(
    failure: str, object_store: ObjectStore, client: Any
) -> None:
    object_store.fail(failure, "PUT", "folder/*", first=2)

    client.put_object(Bucket=object_store.bucket, Key="folder/a", Body=b"a")
    with pytest.raises((ClientError, HTTPClientError)):
        client.put_object(Bucket=object_store.bucket, Key="folder/b", Body=b"b")
    client.put_object(Bucket=object_store.bucket, Key="folder/c", Body=b"c")

    is_done = failure == "reset"
    there = ["folder/a", "folder/b", "folder/c"] if is_done else ["folder/a", "folder/c"]
    assert object_store.keys() == there


def test_bodies_are_cut_off_and_bits_are_flipped(object_store: ObjectStore, client: Any) -> None:
    def read() -> bytes:
        return client.get_object(Bucket=object_store.bucket, Key="a")["Body"].read()

    object_store.put("a", b"abcd")
    object_store.fail("flip", "GET")
    object_store.fail("truncate", "GET", first=2)

    assert read() == b"abce"
    with pytest.raises(HTTPClientError):
        read()
    assert read() == b"abcd"


def test_requests_are_counted_by_what_they_ask_for(
    object_store: ObjectStore, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {"Bucket": object_store.bucket, "Key": "a"}
    let_parts_be_short(monkeypatch)
    sizes = (5 * UNIT, UNIT)
    with object_store.counted() as count:
        upload = of | {"UploadId": client.create_multipart_upload(**of)["UploadId"]}
        parts = [
            {
                "PartNumber": number,
                "ETag": client.upload_part(Body=b"a" * size, PartNumber=number, **upload)["ETag"],
            }
            for number, size in enumerate(sizes, start=1)
        ]
        client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
        client.get_object(Range="bytes=0-2", **of)
        client.copy_object(**of | {"Key": "b"}, CopySource=of)
        client.list_objects_v2(Bucket=object_store.bucket)
        client.delete_object(**of | {"Key": "b"})

    in_parts = {"BEGIN": 1, "PART": 2, "COMPLETE": 1}
    assert count == {**in_parts, "GET": 1, "COPY": 1, "LIST": 1, "DELETE": 1}
    assert object_store.keys() == ["a"]
    sent = [each.sent for each in object_store.requests if each.bucket == object_store.bucket]
    assert sum(sent) >= sum(sizes)

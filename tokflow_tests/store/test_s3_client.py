"""Requests to S3 are made as the environment asks for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tokflow.store import requests
from tokflow.store.remote import objects_at
from tokflow.store.requests import RemoteStoreError, S3Client
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.raw.servers import make_certificate, needs_openssl, running


@dataclass
class Site:
    """A server whose objects are all the same."""

    url: str = ""
    asked: list[tuple[str, Message]] = field(default_factory=list)
    """What requests named, and their headers."""
    refusal: str = ""
    """The code of an error."""
    checksum: str = ""
    """The CRC32 that the first answer names."""
    kind: str = "binary/octet-stream"
    """The Content-Type."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(Site()) as site:
        monkeypatch.setenv("AWS_ENDPOINT_URL", site.url)
        yield site


@contextmanager
def serving(site: Site, tls=None) -> Iterator[Site]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self, body: str = "data") -> None:
            site.asked.append((self.path, self.headers))
            body = f"<Error><Code>{site.refusal}</Code></Error>" if site.refusal else body
            self.send_response(400 if site.refusal else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", site.kind)
            if site.checksum and len(site.asked) == 1:
                self.send_header("x-amz-checksum-crc32", site.checksum)
            self.end_headers()
            self.wfile.write(body.encode())

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET("")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with running(Answers) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        site.url = f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_port}"
        yield site


def test_a_public_bucket_is_asked_without_credentials(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")

    assert S3Client("s3://bucket").read("a") == b"data"

    [(_, headers)] = site.asked
    assert "Authorization" not in headers


def test_a_profile_has_its_credentials_and_every_request_says_who_pays_and_encrypts(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    credentials = tmp_path / "credentials"
    credentials.write_text("[p]\naws_access_key_id = key-of-p\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "p")
    monkeypatch.setenv("FSSPEC_S3_REQUESTER_PAYS", "true")
    encrypted = '{"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"}}'
    monkeypatch.setenv("FSSPEC_S3", encrypted)

    objects_at("s3://bucket/store").read("a", 1, 3)
    objects_at("s3://bucket/store").put("a", b"data")

    (of_read, read), (_, put) = site.asked
    assert (of_read, read["Range"]) == ("/bucket/store/a", "bytes=1-2")
    assert "Credential=key-of-p/" in read["Authorization"]
    assert read["x-amz-request-payer"] == put["x-amz-request-payer"] == "requester"
    assert read["x-amz-server-side-encryption"] is None
    assert put["x-amz-server-side-encryption"] == "aws:kms"


def test_requests_go_by_the_proxy_of_the_environment(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.invalid")
    monkeypatch.setenv("http_proxy", site.url)

    assert S3Client("s3://bucket").read("a") == b"data"

    assert [url for url, _ in site.asked] == ["http://store.invalid/bucket/a"]


@needs_openssl
def test_certificates_to_trust_are_those_of_the_bundle(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    bundle, tls = make_certificate(tmp_path, "IP:127.0.0.1")
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")
    with serving(Site(), tls) as secured:
        monkeypatch.setenv("AWS_ENDPOINT_URL", secured.url)
        with pytest.raises(RemoteStoreError, match="CERTIFICATE_VERIFY_FAILED"):
            objects_at("s3://bucket").read("a")

        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        assert objects_at("s3://bucket").read("a") == b"data"


def test_a_bucket_of_another_region_is_told_with_what_to_set(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")
    site.refusal = "IllegalLocationConstraintException"

    with pytest.raises(RemoteStoreError, match="expected the region of the bucket") as raised:
        objects_at("s3://bucket").read("a")

    assert raised.value.found == "S3Error: IllegalLocationConstraintException:"
    assert len(site.asked) == 1


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_body_of_another_checksum_is_asked_for_again(
    is_kept: bool, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")
    site.checksum = "AAAAAA=="
    objects = objects_at("s3://bucket")

    if is_kept:
        assert objects.get_file("a", tmp_path / "a", 4)
        assert (tmp_path / "a").read_bytes() == b"data"
    else:
        assert objects.read("a") == b"data"

    assert len(site.asked) == 2


def test_a_version_that_is_not_there_any_more_is_no_other_one(object_store: ObjectStore):
    client = S3Client(object_store.url)
    object_store.put("a", b"12345678")
    (page,) = client.pages("list_objects_v2", "ContinuationToken", Prefix="a")
    etag = page["Contents"][0]["ETag"]
    assert client.read("a", 2, 4, IfMatch=etag) == b"34"

    object_store.put("a", b"87654321")

    with pytest.raises(requests.S3Error) as raised:
        client.read("a", 2, 4, IfMatch=etag)
    assert raised.value.status == 412


def test_pages_of_a_listing_follow_each_other(object_store: ObjectStore):
    for name in "abcde":
        object_store.put(name, b"")

    pages = S3Client(object_store.url).pages("list_objects_v2", "ContinuationToken", MaxKeys=2)

    assert [[each["Key"] for each in page["Contents"]] for page in pages] == [
        ["a", "b"], ["c", "d"], ["e"]
    ]  # fmt: skip


def test_an_endpoint_that_answers_with_a_web_page_is_named_soon(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")
    site.kind = "text/html; charset=utf-8"

    with pytest.raises(RemoteStoreError, match="web page") as raised:
        objects_at("s3://bucket/store").names("")

    assert f"AWS_ENDPOINT_URL={site.url}," in raised.value.remedy
    assert len(site.asked) == requests.FIRST_TRIES

"""Servers that are busy, refuse, or answer with something else."""

import base64
import gzip
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import RawFileError
from tokflow.raw import RawConfig, RawFile, list_raw, read_raw_files
from tokflow.raw.hashes import HashCache, stamp_of
from tokflow.raw.remote_file import Blocks
from tokflow.store.atomic import MANIFEST_NAME
from tokflow.store.listed_files import broken_files
from tokflow.store.manifest import read_manifest
from tokflow_tests.hub import Hub
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.raw.fetching import (
    CONTENT,
    SHA256,
    Server,
    fetched,
    names,
    read_raw_file,
    refusal,
    source_of,
)
from tokflow_tests.raw.servers import make_certificate, needs_openssl


@pytest.mark.parametrize("status", [500, 503])
def test_a_busy_server_is_asked_again(status: int, server: Server, tmp_path: Path, caplog):
    server.statuses = [status, 200, status]

    assert fetched(server, tmp_path).sha256 == SHA256
    assert server.requests == ["HEAD", "HEAD", "GET", "HEAD", "GET", "HEAD"]
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(f"{server.url}: HTTP status {status} (")
    assert caplog.messages[0].endswith("; trying again in 0.0 s")


def test_a_server_is_left_alone_for_as_long_as_it_asks(server: Server, tmp_path: Path, caplog):
    server.statuses = [429]

    fetched(server, tmp_path)

    assert caplog.messages[0].endswith("(Too Many Requests); trying again in 1.0 s")


@pytest.mark.parametrize(
    ("status", "found", "requests"),
    [
        (404, "404 (Not Found); correct ", ["HEAD"]),
        (401, "401 (Unauthorized); give credentials that may read it, or ", ["HEAD"]),
        (403, "403 (Forbidden); give credentials that may read it, or ", ["HEAD", "GET"]),
    ],
)
def test_a_refusal_is_not_tried_again(
    status: int, found: str, requests: list[str], server: Server, tmp_path: Path
):
    server.statuses = [status] * 9

    assert f"found HTTP status {found}" in refusal(server, tmp_path)
    assert server.requests == requests


def test_a_server_that_refuses_head_is_asked_by_get(server: Server, tmp_path: Path):
    server.has_head = False

    copies = [fetched(server, tmp_path), fetched(server, tmp_path)]

    assert copies[0] == copies[1]
    assert server.requests == ["HEAD", "GET", "GET", "HEAD", "GET", "HEAD", "GET"]


def test_an_answer_whose_end_cannot_be_told_from_a_break_is_refused(server: Server, tmp_path: Path):
    server.has_length = False

    assert "found neither;" in refusal(server, tmp_path)


def test_a_gz_file_that_is_declared_as_encoded_is_kept_and_any_other_refused(
    server: Server, tmp_path: Path
):
    server.content, server.encoding = gzip.compress(CONTENT), "gzip"
    source = source_of(server.url.replace("a.txt", "a.txt.gz"), key="a.txt.gz")

    assert read_raw_file(source, store=tmp_path).path.read_bytes() == server.content
    assert "found the content encoded as 'gzip';" in refusal(server, tmp_path)


def test_no_secret_of_a_url_is_written_or_shown(server: Server, tmp_path: Path, caplog):
    url = server.url.replace("//", "//user:pass%2Fword@") + "?token='hidden"
    server.password = f"Basic {base64.b64encode(b'user:pass/word').decode()}"
    server.breaks, server.statuses = [3000], [500]
    caplog.set_level(logging.DEBUG)

    raw = read_raw_file(source_of(url), store=tmp_path)
    server.statuses = [404]
    with pytest.raises(RawFileError) as raised:
        read_raw_file(source_of(url), store=tmp_path)

    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    told = "\n".join([caplog.text, str(raised.value), repr(raised.value.__context__)])
    assert raw.path.read_bytes() == CONTENT
    known = json.loads((tmp_path / "raw/en/a.txt/.source.json").read_text())
    assert known["url"] == server.url
    assert known["url_sha256"] == hashlib.sha256(f"{server.url}?token='hidden".encode()).hexdigest()
    for secret in ("pass", "word", "hidden", "user:", server.password[6:]):
        assert not [content for content in written if secret.encode() in content]
        assert secret not in told


@needs_openssl
def test_a_certificate_that_is_not_trusted_is_not_tried_again(server: Server, tmp_path: Path):
    _, context = make_certificate(tmp_path, "IP:127.0.0.1")
    server.wrap(context)
    url = server.url.replace("http:", "https:")

    with pytest.raises(RawFileError, match=r"certificate that is not trusted \(self-signed"):
        read_raw_file(source_of(url), store=tmp_path)


def test_a_remote_file_is_a_complete_copy_in_the_store(server: Server, tmp_path: Path):
    store = tmp_path / "shakespeare"
    calls: list[tuple[int, int | None]] = []

    raw = read_raw_file(
        source_of(server.url), store=store, progress=lambda *call: calls.append(call)
    )

    assert raw.path == store / "raw/en/a.txt" / SHA256[:16] / "a.txt"
    assert raw.path.read_bytes() == CONTENT
    assert (raw.key, raw.num_bytes, raw.sha256) == ("en/a.txt", 10_000, SHA256)
    assert server.requests == ["HEAD", "GET", "HEAD"]
    assert calls == [(10_000, 10_000)]  # it is not read again to be hashed
    manifest = read_manifest(raw.path.parent)
    of = manifest.recipe.stage, manifest.dataset, manifest.partition
    assert of == ("raw", "shakespeare", "en/a.txt")
    assert (manifest.recipe.fingerprint, manifest.recipe.parents) == (SHA256, {"content": SHA256})
    assert dict(manifest.counts) == {"num_bytes": 10_000}
    assert broken_files(raw.path.parent, manifest) == []
    assert names(store) == [".lock", ".source.json", SHA256[:16]]
    raw.check_unchanged()


@pytest.mark.parametrize(
    ("etag", "last_modified", "is_chunked", "num_downloads"),
    [
        ('"v1"', None, False, 1),
        (None, "Thu, 01 Jan 2026 00:00:00 GMT", False, 1),
        ('W/"v1"', None, False, 1),
        (None, None, False, 1),  # the size alone
        (None, None, True, 2),  # nothing
    ],
)
def test_a_version_is_known_by_whatever_the_server_reports(
    etag: str | None,
    last_modified: str | None,
    is_chunked: bool,
    num_downloads: int,
    server: Server,
    tmp_path: Path,
):
    server.etag, server.last_modified, server.is_chunked = etag, last_modified, is_chunked

    copies = [fetched(server, tmp_path), fetched(server, tmp_path)]

    assert copies[0] == copies[1]
    assert server.requests.count("GET") == num_downloads


def test_a_file_that_changes_during_the_download_is_fetched_again(server: Server, tmp_path: Path):
    server.after_get = [b"second version"]

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == b"second version"
    assert server.requests == ["HEAD", "GET", "HEAD", "HEAD", "GET", "HEAD"]


def test_two_that_fetch_the_same_file_download_it_once(server: Server, tmp_path: Path):
    copies: list[RawFile] = []
    threads = [
        threading.Thread(target=lambda: copies.append(fetched(server, tmp_path))) for _ in range(3)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert server.requests.count("GET") == 1
    assert copies[0] == copies[1] == copies[2]


def test_offline_takes_the_newest_copy_without_asking(server: Server, tmp_path: Path):
    copy = fetched(server, tmp_path)
    server.requests.clear()

    raw = read_raw_file(source_of(server.url), store=tmp_path, offline=True)

    assert (raw.path, server.requests) == (copy.path, [])
    (copy.path.parent / MANIFEST_NAME).unlink()
    assert "found none;" in refusal(server, tmp_path, offline=True)


def test_a_copy_that_was_cut_short_is_fetched_anew_and_one_with_another_byte_is_an_error(
    server: Server, tmp_path: Path
):
    copy = fetched(server, tmp_path)
    copy.path.write_bytes(CONTENT[:-1])

    assert fetched(server, tmp_path).sha256 == SHA256
    assert copy.path.read_bytes() == CONTENT
    copy.path.write_bytes(damaged := CONTENT[:-1] + b"x")
    sha256 = hashlib.sha256(damaged).hexdigest()[:16]
    assert f"found 10,000 bytes with sha256 {sha256}…;" in refusal(server, tmp_path)


def test_a_wrong_remembered_checksum_does_not_make_a_copy_damaged(server: Server, tmp_path: Path):
    copy = fetched(server, tmp_path)
    os.utime(copy.path, (1_000_000_000, 1_000_000_000))
    read_raw_file(source_of(server.url), store=tmp_path)
    HashCache(tmp_path).keep(copy.path, stamp_of(copy.path), "0" * 64)

    raw = read_raw_file(source_of(server.url), store=tmp_path)

    assert (raw.sha256, raw.remembered) == (SHA256, "0" * 64)
    assert read_raw_file(source_of(server.url), store=tmp_path).remembered is None


def test_a_raw_file_may_be_called_as_the_manifest_is(server: Server, tmp_path: Path):
    copy = read_raw_file(source_of(server.url, key="_tokflow"), store=tmp_path)

    assert copy.path.name == "__tokflow"
    assert broken_files(copy.path.parent, read_manifest(copy.path.parent)) == []


LARGE = b"x\n" * 2**20


class Remote:
    """A file that is reached in one way: its URL; `put` replaces it, `break_off` cuts an answer."""

    def __init__(self, kind: str, request: pytest.FixtureRequest) -> None:
        self.kind = kind
        self.server: Any = request.getfixturevalue(
            {"http": "server", "s3": "object_store", "memory": "memory", "hub": "hub"}[kind]
        )
        self.patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")

    @property
    def url(self) -> str:
        urls = {"memory": "memory://bucket/a.txt", "hub": "hf://datasets/team/texts/a.txt"}
        if self.kind == "s3":
            return f"{self.server.url}/raw/a.txt"
        return urls.get(self.kind) or self.server.url

    def put(self, content: bytes) -> None:
        server: Server | ObjectStore | Hub | Any = self.server
        if self.kind == "http":
            server.content, server.etag = content, f'"{hashlib.md5(content).hexdigest()}"'
        elif self.kind == "s3":
            server.put("raw/a.txt", content)
        elif self.kind == "hub":
            server.push("team/texts", {"a.txt": content})
        else:
            server.pipe("/bucket/a.txt", content)

    def break_off(self) -> None:
        if self.kind == "http":
            self.server.breaks = [3000]
        elif self.kind == "s3":
            self.server.fail("truncate", "GET", "raw/*")
        else:
            file_class = type(self.server.open("/bucket/a.txt"))
            answers: Iterator[bool] = iter([True])

            def read(file: Any, size: int = -1) -> bytes:
                if next(answers, False):
                    raise RuntimeError("broken by s3://bucket/a.txt?signature=secret")
                return super(file_class, file).read(size)

            self.patch.setattr(file_class, "read", read, raising=False)

    def read(self, store: Path, **options: Any) -> RawFile:
        config = RawConfig(files=self.url)
        listing = list_raw(config, base=Path("/"), store=store)
        [raw] = read_raw_files(listing.sources.values(), store=store, **options).values()
        return raw


@pytest.fixture(params=["http", "s3", "memory", "hub"])
def remote(request: pytest.FixtureRequest) -> Remote:
    return Remote(request.param, request)


not_hub = pytest.mark.parametrize("remote", ["http", "s3", "memory"], indirect=True)


def test_a_file_is_fetched_once_for_each_version(remote: Remote, tmp_path: Path):
    remote.put(CONTENT)
    first, second = remote.read(tmp_path), remote.read(tmp_path)
    remote.put(b"new")

    third = remote.read(tmp_path)

    assert first == second
    assert [raw.path.read_bytes() for raw in (first, third)] == [CONTENT, b"new"]


@not_hub  # which lists its files
def test_a_missing_file_is_an_error(remote: Remote, tmp_path: Path):
    if remote.kind == "http":
        remote.server.statuses = [404]

    with pytest.raises(RawFileError) as raised:
        remote.read(tmp_path)

    assert raised.value.where == remote.url
    assert raised.value.remedy.startswith("correct the URL under raw.files")


@not_hub  # which is asked as a web server is
@pytest.mark.parametrize("as_read", [False, True])
def test_an_answer_that_breaks_off_is_taken_up(
    as_read: bool, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
):
    monkeypatch.setattr(Blocks, "block_bytes", 1000)
    remote.put(LARGE)
    remote.break_off()

    raw = remote.read(tmp_path, as_read=as_read)

    assert raw.path.read_bytes() == LARGE
    assert "secret" not in caplog.text


@not_hub  # whose commits stay
def test_another_version_is_never_read_for_the_one_that_was_listed(remote: Remote, tmp_path: Path):
    remote.put(LARGE)
    raw = remote.read(tmp_path, as_read=True)
    with raw.path.open("rb") as file:
        file.read(10)
        remote.put(LARGE.replace(b"x", b"y"))
        with pytest.raises(RawFileError, match="found another one; "):
            file.read(len(LARGE))

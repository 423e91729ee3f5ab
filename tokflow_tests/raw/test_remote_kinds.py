"""Raw files of a web server, of S3, of a file system of fsspec and of the hub: claims about all."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import RawFileError
from tokflow.raw import RawConfig, RawFile, list_raw, read_raw_files
from tokflow.raw.remote_file import Blocks
from tokflow_tests.hub import Hub
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.raw.fetching import CONTENT, Server

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

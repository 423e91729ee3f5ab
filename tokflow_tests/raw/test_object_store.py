from pathlib import Path

import pytest

from tokflow.errors import RawFileError
from tokflow.raw.remote_file import Blocks
from tokflow_tests.raw.fetching import CONTENT, read_raw_file, source_of


def test_an_object_of_a_store_is_fetched_once_for_each_version(memory, tmp_path: Path):
    source = source_of("memory://bucket/a.txt")
    memory.pipe("/bucket/a.txt", CONTENT)
    copies = [read_raw_file(source, store=tmp_path) for _ in range(2)]
    memory.pipe("/bucket/a.txt", b"new")

    copies.append(read_raw_file(source, store=tmp_path))

    assert copies[0] == copies[1]
    assert [copy.path.read_bytes() for copy in copies] == [CONTENT, CONTENT, b"new"]


def test_a_missing_object_is_an_error(memory, tmp_path: Path):
    with pytest.raises(RawFileError) as raised:
        read_raw_file(source_of("memory://bucket/a.txt"), store=tmp_path)

    assert "found FileNotFoundError: /bucket/a.txt;" in str(raised.value)


def test_what_fsspec_has_cached_is_asked_for_anew(memory, tmp_path: Path, monkeypatch):
    cached: dict[str, dict] = {}
    ask = type(memory).info

    def info(self, path: str) -> dict:
        return cached.setdefault(path, ask(self, path))

    monkeypatch.setattr(type(memory), "info", info)
    monkeypatch.setattr(type(memory), "invalidate_cache", lambda *_: cached.clear())
    memory.pipe("/bucket/a.txt", CONTENT)
    read_raw_file(source_of("memory://bucket/a.txt"), store=tmp_path)
    memory.pipe("/bucket/a.txt", b"new")

    copy = read_raw_file(source_of("memory://bucket/a.txt"), store=tmp_path)

    assert copy.path.read_bytes() == b"new"


def test_an_object_store_that_breaks_off_is_taken_up_where_it_broke(
    memory, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(Blocks, "block_bytes", 4000)
    memory.pipe("/bucket/a.txt", CONTENT)
    file_class = type(memory.open("/bucket/a.txt"))
    reads: list[int] = []

    def read(self, _: int = -1) -> bytes:
        reads.append(self.tell())
        if len(reads) == 2:
            raise RuntimeError("broken by s3://bucket/a.txt?signature=secret")
        return super(file_class, self).read(4000)

    monkeypatch.setattr(file_class, "read", read, raising=False)

    copy = read_raw_file(source_of("memory://bucket/a.txt"), store=tmp_path)

    assert copy.path.read_bytes() == CONTENT
    assert reads == [0, 4000, 4000, 8000]

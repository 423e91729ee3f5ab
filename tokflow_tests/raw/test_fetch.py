import hashlib
import os
import threading
from pathlib import Path

import pytest

from tokflow.errors import RawFileError
from tokflow.raw import RawFile
from tokflow.raw.hashes import HashCache, stamp_of
from tokflow.store.atomic import MANIFEST_NAME
from tokflow.store.listed_files import broken_files
from tokflow.store.manifest import read_manifest
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
    assert (manifest.recipe.stage, manifest.dataset, manifest.partition) == (
        "raw",
        "shakespeare",
        "en/a.txt",
    )
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


def test_a_copy_that_was_cut_short_is_fetched_anew(server: Server, tmp_path: Path):
    copy = fetched(server, tmp_path)
    copy.path.write_bytes(CONTENT[:-1])

    raw = read_raw_file(source_of(server.url), store=tmp_path)

    assert raw.sha256 == SHA256
    assert copy.path.read_bytes() == CONTENT


def test_a_copy_of_which_a_byte_changed_is_an_error(server: Server, tmp_path: Path):
    copy = fetched(server, tmp_path)
    copy.path.write_bytes(CONTENT[:-1] + b"x")

    with pytest.raises(RawFileError) as raised:
        read_raw_file(source_of(server.url), store=tmp_path)

    damaged = hashlib.sha256(CONTENT[:-1] + b"x").hexdigest()
    assert f"found 10,000 bytes with sha256 {damaged[:16]}…;" in str(raised.value)


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

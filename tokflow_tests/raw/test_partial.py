"""Downloads that break off are taken up where they broke, and never joined with another version."""

import os
from pathlib import Path

import pytest

from tokflow.raw.remote_file import Blocks
from tokflow.store.atomic import MANIFEST_NAME
from tokflow_tests.disks import full_disk
from tokflow_tests.raw.fetching import CONTENT, SHA256, Server, fetched, refusal


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blocks, "block_bytes", 1000)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_broken_connection_is_taken_up_where_it_broke(
    is_chunked: bool, server: Server, tmp_path: Path
):
    server.breaks, server.is_chunked = [3000, 2000], is_chunked

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT
    gets = [request for request in server.requests if request.startswith("GET")]
    if not is_chunked:
        assert gets == ["GET", "GET bytes=3000-", "GET bytes=5000-"]
    assert copy.sha256 == SHA256


@pytest.mark.parametrize(("has_ranges", "skew", "more"), [(False, 0, []), (True, 500, ["GET"])])
def test_a_server_that_gives_no_range_or_another_is_asked_for_all_again(
    has_ranges: bool, skew: int, more: list[str], server: Server, tmp_path: Path
):
    server.breaks, server.has_ranges, server.skew = [3000], has_ranges, skew

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "GET", "HEAD", "GET bytes=3000-", *more, "HEAD"]


@pytest.mark.parametrize("etag", ['W/"v1"', None])
def test_two_halves_of_what_may_be_two_versions_are_never_joined(
    etag: str | None, server: Server, tmp_path: Path
):
    server.breaks, server.etag = [3000], etag

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT
    assert [request for request in server.requests if request.startswith("GET")] == ["GET", "GET"]


def test_a_file_that_changes_between_two_tries_is_fetched_from_its_beginning(
    server: Server, tmp_path: Path
):
    server.breaks = [3000, 0, 0, 0, 0]
    refusal(server, tmp_path)
    server.content, server.etag, server.breaks = bytes(10_000), '"v2"', [1000]

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == bytes(10_000)


def test_a_download_that_stays_cut_is_not_taken_for_whole_and_goes_on_in_the_next_run(
    server: Server, tmp_path: Path
):
    server.breaks = [3000, 0, 0, 0, 0]
    assert "found 3,000 of 10,000 bytes, 5 times in a row;" in refusal(server, tmp_path)
    assert not list(tmp_path.rglob(MANIFEST_NAME))
    server.requests.clear()
    calls: list[tuple[int, int | None]] = []

    copy = fetched(server, tmp_path, progress=lambda *call: calls.append(call))

    assert server.requests == ["HEAD", "GET bytes=3000-", "HEAD"]
    assert calls == [(num, 10_000) for num in range(4000, 10_001, 1000)]
    assert copy.path.read_bytes() == CONTENT


def test_a_block_of_which_bytes_are_lost_is_fetched_again(server: Server, tmp_path: Path):
    server.breaks = [3000, 0, 0, 0, 0]
    refusal(server, tmp_path)
    [file] = tmp_path.rglob(".blocks-*/a.txt/content")
    os.truncate(file, 2999)
    server.requests.clear()

    assert fetched(server, tmp_path).path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "GET bytes=2000-", "HEAD"]


@pytest.mark.parametrize("block_bytes", [1000, 3000])
def test_a_part_that_was_complete_when_the_process_died_is_not_downloaded_again(
    block_bytes: int, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Blocks, "block_bytes", block_bytes)  # 3000: the last one is shorter
    server.statuses = [200, 200, 404]
    refusal(server, tmp_path)
    server.requests.clear()

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "HEAD"]


def test_a_disk_that_takes_no_more_is_an_error(server: Server, tmp_path: Path):
    with full_disk(5000):
        told = refusal(server, tmp_path)

    assert "expected room for 10,000 bytes, found File too large;" in told
    server.requests.clear()
    assert fetched(server, tmp_path).path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "GET bytes=5000-", "HEAD"]

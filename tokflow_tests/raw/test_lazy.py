"""Requests for a remote file that is fetched as it is read."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, Limit
from tokflow.errors import RawFileError
from tokflow.raw import RawFile
from tokflow.raw.fetch import LEAST_BYTES
from tokflow_tests.raw.fetching import Server, read_raw_file, source_of
from tokflow_tests.reading import LINES, texts_of

NUM_DOCUMENTS, NUM_CHARS = 4000, 3000
DIGITS = np.random.default_rng(1).bytes(NUM_DOCUMENTS * NUM_CHARS // 2).hex()
TEXTS = [DIGITS[at : at + NUM_CHARS] for at in range(0, len(DIGITS), NUM_CHARS)]
"""12 MB, which compress to half of it."""

JSONL = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
TABLE = pa.table({"id": np.arange(NUM_DOCUMENTS), "text": TEXTS})


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=1000)
    return sink.getvalue()


def arrow(new: Callable) -> bytes:
    sink = io.BytesIO()
    with new(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=100)
    return sink.getvalue()


CONTENT: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: JSONL,
    "a.jsonl.gz": lambda: gzip.compress(JSONL, 1),
    "a.txt": lambda: "\n".join(TEXTS).encode(),
    "a.parquet": parquet,
    "a.arrow": lambda: arrow(pa.ipc.new_file),
    "stream.arrow": lambda: arrow(pa.ipc.new_stream),
}


def serve(server: Server, name: str) -> int:
    """Let the server have a file; return its size."""
    server.name, server.content = name, CONTENT[name]()
    return len(server.content)


def looked_at(server: Server, store: Path, **options) -> RawFile:
    source = source_of(server.url, f"en/{server.name}")
    return read_raw_file(source, store=store, as_read=True, **options)


def first(raw: RawFile, num: int, config: DocumentsConfig = LINES) -> list[str]:
    """Return the first documents, read as a limit has them read."""
    config = config.model_copy(update={"limit": Limit(documents=num)})
    return texts_of(raw.path, config)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_first_documents_cost_little_more_than_themselves_and_more_documents_only_the_rest(
    name: str, server: Server, tmp_path: Path
):
    num_bytes = serve(server, name)
    num_sent = []
    for num in (100, 100, 800, NUM_DOCUMENTS + 1):
        assert first(looked_at(server, tmp_path), num) == TEXTS[:num]
        num_sent.append(server.num_sent)

    assert num_bytes > 4 * LEAST_BYTES
    assert num_sent[0] <= 100 * NUM_CHARS + 5 * LEAST_BYTES
    assert num_sent[0] == num_sent[1] <= num_sent[2] < num_sent[3] <= num_bytes
    assert server.requests.count("HEAD") == 4


def test_of_a_server_without_ranges_the_answer_is_left_early(server: Server, tmp_path: Path):
    server.name, server.content, server.has_ranges = "a.txt", b"line\n" * 8_000_000, False
    raw = looked_at(server, tmp_path)

    assert first(raw, 1000) == ["line"] * 1000
    # What the sockets of both sides hold is sent in vain.
    assert LEAST_BYTES <= server.num_sent <= 30_000_000
    assert first(looked_at(server, tmp_path), 1000) == ["line"] * 1000
    assert server.requests == ["HEAD", "GET bytes=0-1048575", "GET", "HEAD"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_of_a_server_without_ranges_one_answer_is_read_on(
    name: str, server: Server, tmp_path: Path
):
    serve(server, name)
    server.has_ranges, server.breaks = False, [5_000_000, 3_000_000]

    assert first(looked_at(server, tmp_path), NUM_DOCUMENTS + 1) == TEXTS
    kinds = [each.partition("=")[0] for each in server.requests]
    assert kinds == ["HEAD", "GET bytes", "GET", "GET"]  # to go on would be asked for in vain


def test_two_versions_that_differ_in_their_times_alone_are_never_mixed(
    server: Server, tmp_path: Path
):
    serve(server, "a.jsonl")
    server.etag, server.last_modified = None, "Sun, 22 Nov 2026 18:00:00 GMT"
    raw = looked_at(server, tmp_path)
    first(raw, 100)
    server.last_modified = "Sun, 22 Nov 2026 18:00:01 GMT"

    with pytest.raises(RawFileError, match="found another one;"):
        first(raw, 2000)


@pytest.mark.parametrize("tells_size", [True, False])
def test_a_server_that_sends_less_of_a_range_at_once_is_asked_more_often(
    tells_size: bool, server: Server, tmp_path: Path, caplog
):
    num_bytes = serve(server, "a.jsonl")
    server.most_of_range, server.tells_size = 500_000, tells_size

    assert first(looked_at(server, tmp_path), NUM_DOCUMENTS + 1) == TEXTS
    assert server.num_sent == num_bytes
    assert caplog.text == ""


def test_offline_the_version_is_the_one_that_was_there(server: Server, tmp_path: Path):
    serve(server, "a.jsonl")
    online = looked_at(server, tmp_path)
    first(online, 100)
    server.requests.clear()

    raw = looked_at(server, tmp_path, offline=True)

    assert raw.sha256 == online.sha256
    assert first(raw, 100) == TEXTS[:100]
    assert server.requests == []
    with pytest.raises(RawFileError, match="a complete copy"):
        read_raw_file(source_of(server.url, "en/a.jsonl"), store=tmp_path, offline=True)


@pytest.mark.parametrize("etag", [None, 'W/"v1"'])
def test_a_file_whose_versions_cannot_be_told_apart_is_fetched_whole(
    etag: str | None, server: Server, tmp_path: Path
):
    num_bytes = serve(server, "a.txt")
    server.etag = etag

    raw = looked_at(server, tmp_path)

    assert raw.version is None
    assert server.num_sent == num_bytes == raw.path.stat().st_size


def test_a_password_is_in_the_memory_of_a_run_alone(server: Server, tmp_path: Path):
    serve(server, "a.jsonl")
    url = server.url.replace("//", "//me:hunter2@") + "?key=hunter2"
    source = source_of(url, "a.jsonl")
    raw = read_raw_file(source, store=tmp_path, as_read=True)
    first(raw, 1)

    assert raw.remote is not None
    seen = source, raw, raw.path, raw.remote, raw.remote.access, raw.version, raw.described
    told = f"{raw.path} {seen!r}"
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"hunter2" in content for content in [*kept, told.encode()])

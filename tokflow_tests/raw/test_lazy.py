"""Requests for a remote file that is fetched as it is read."""

import gzip
import hashlib
import io
import itertools
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, Limit, ranges
from tokflow.errors import FetchError, RawFileError
from tokflow.raw import RawConfig, RawFile, list_raw, read_raw_files, remote_version
from tokflow.raw.fetch import LEAST_BYTES
from tokflow.raw.remote_file import RemoteFile, RemoteReader
from tokflow.raw.remote_version import Body, RemoteVersion, TransientError, Validator
from tokflow.store.remote import place_at
from tokflow.store.stored_outputs import open_store
from tokflow_tests.object_store import ObjectStore
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


MIB = 2**20


def put(there: ObjectStore, key: str, content: bytes) -> None:
    there.put(key, content)


def listed_at(there: ObjectStore, pattern: str = "raw/*", **options) -> dict[str, RawFile]:
    """Return the raw files of a dataset whose store is remote."""
    store = place_at(f"{there.url}/store").root / "en"
    config = RawConfig(files=(f"{there.url}/{pattern}",))
    listing = list_raw(config, base=Path("/"), store=store)
    of = open_store(f"{there.url}/store")
    return read_raw_files(listing.sources.values(), store=store, of=of, **options)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet", "stream.arrow"])
def test_every_format_is_read_as_it_arrives(name: str, object_store: ObjectStore, tmp_path: Path):
    content = CONTENT[name]()
    put(object_store, f"raw/{name}", content)

    with object_store.counted() as count:
        raw = listed_at(object_store)[name]
        assert texts_of(raw.path, LINES) == TEXTS

    assert raw.num_bytes == len(content)
    assert raw.path.read_sha256 in (None, hashlib.sha256(content).hexdigest())
    assert (raw.path.read_sha256 is None) == (name == "a.parquet")
    assert (count["HEAD"], count["LIST"]) == (0, 1)
    assert count["GET"] < 20
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name[0] != "."]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_ranges_fetch_what_they_hold_and_little_more(name: str, object_store: ObjectStore):
    put(object_store, f"raw/{name}", CONTENT[name]())
    path = pickle.loads(pickle.dumps(listed_at(object_store)[name].path))
    found = ranges.ranges_of(path, LINES, range_bytes=4_000_000)
    before = len(object_store.requests)

    texts = [texts_of(path, LINES, within=each) for each in found]

    assert len(found) >= 3
    assert list(itertools.chain(*texts)) == TEXTS
    received = sum(request.received for request in object_store.requests[before:])
    assert received < 1.3 * path.stat().st_size


def test_many_small_files_are_listed_by_pages_and_cost_one_request_each(
    object_store: ObjectStore,
):
    for number in range(30):
        put(object_store, f"raw/{number:02}.parquet", one_text(f"text {number}"))

    with object_store.counted() as count:
        found = listed_at(object_store, "raw/*.parquet")
        texts = [texts_of(raw.path, LINES) for raw in found.values()]

    assert texts == [[f"text {number}"] for number in range(30)]
    assert count == {"LIST": 1, "GET": 30}


def one_text(text: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": [text]}), sink)
    return sink.getvalue()


def test_a_file_that_is_named_is_the_file_that_is_found(object_store: ObjectStore):
    put(object_store, "raw/a.txt", b"one")
    [found] = listed_at(object_store).values()
    [named] = listed_at(object_store, "raw/a.txt").values()
    put(object_store, "raw/a.txt", b"one")  # the same content, later
    [again] = listed_at(object_store).values()
    assert texts_of(named.path, LINES) == ["one"]
    put(object_store, "raw/a.txt", b"two")
    [other] = listed_at(object_store).values()

    assert found.sha256 == named.sha256 == again.sha256 != other.sha256


def version_of(access: "BreaksOff | Source", url: str) -> RemoteVersion:
    validator = access.probe()
    return RemoteVersion(access=access, url=url, url_sha256="", validator=validator, is_kept=False)


class BreaksOff:
    """A file whose answers break off after one byte."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.version = Validator(etag="0" * 32, num_bytes=len(content))

    def probe(self) -> Validator:
        return self.version

    @contextmanager
    def open_at(self, offset: int, stop: int | None = None) -> Iterator[Body]:
        answers = [self.content[offset : offset + 1]]

        def read(size: int) -> bytes:
            if not answers:
                raise TransientError("a connection that broke off")
            return answers.pop()

        yield Body(offset, len(self.content), read, self.version, stop)


def test_what_arrives_before_an_answer_breaks_off_begins_the_count_of_tries_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("tokflow.raw.remote_version.FIRST_WAIT_SECONDS", 0.0)
    version = version_of(BreaksOff(b"more bytes than tries"), "s3://a/b")

    assert version.fetch_range(5, 21) == b"bytes than tries"


@pytest.mark.parametrize("kind", ["GET", "LIST"])
def test_a_store_that_does_not_answer_is_asked_in_one_place_and_its_word_is_told(
    kind: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.store.requests.FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr("tokflow.store.requests.NUM_TRIES", 5)
    put(object_store, "raw/a.txt", b"one")
    assert [texts_of(raw.path, LINES) for raw in listed_at(object_store).values()] == [["one"]]
    object_store.fail("503", kind, "raw/*", times=None)

    with object_store.counted() as count, pytest.raises(FetchError, match="found SlowDown: "):
        [texts_of(raw.path, LINES) for raw in listed_at(object_store).values()]

    assert count[kind] == 5


def test_bytes_that_are_not_those_of_the_etag_are_refused(object_store: ObjectStore):
    for name in ("a.txt", "a.csv"):
        put(object_store, f"raw/{name}", b"text\nsome more text")

    for name, raw in listed_at(object_store).items():
        object_store.fail("flip", "GET", f"raw/{name}")
        with pytest.raises(FetchError, match=rf"{name}: .* found MD5 [0-9a-f]+ where its ETag is"):
            texts_of(raw.path, LINES)
        assert texts_of(raw.path, LINES)[-1] == "some more text"


def test_a_small_file_is_compared_in_whatever_order_it_is_read():
    source = Source(22)
    file = RemoteFile.of(Path("a"), version_of(source, "s3://a/b"))

    with file.open() as reader:
        reader.seek(-4, io.SEEK_END)
        assert reader.read(4) == source.content[-4:]

    assert file.read_sha256 == hashlib.sha256(source.content).hexdigest()


def test_an_etag_that_is_no_md5_is_found_out_by_reading_one_file_again():
    version = version_of(BreaksOff(b"text"), "s3://encrypted/a.txt")
    digests = [hashlib.new(name, b"text").hexdigest() for name in ("sha256", "md5")]

    assert version.promised_md5 == "0" * 32
    with pytest.raises(FetchError, match="found MD5"):
        version.check_digests(hashlib.sha256(b"test").hexdigest(), "1" * 32)
    version.check_digests(*digests)
    assert version.promised_md5 is None


class Source:
    """The bytes of a file, and what was asked for of them."""

    has_ranges = True

    def __init__(self, num_bytes: int) -> None:
        self.content = np.random.default_rng(1).bytes(num_bytes)
        self.asked: list[tuple[int, int]] = []

    def probe(self) -> Validator:
        return Validator(etag="v1", num_bytes=len(self.content))

    @contextmanager
    def open_at(self, offset: int, stop: int | None = None) -> Iterator[Body]:
        self.asked.append((offset, stop))
        if not self.has_ranges:
            offset, stop = 0, None
        data = io.BytesIO(self.content[offset:stop])
        yield Body(offset, len(self.content), data.read, self.probe(), stop)

    def open(self, folder: Path = Path("a")) -> RemoteReader:
        return RemoteFile.of(folder, version_of(self, "s3://a/b")).open()


def test_reading_on_fetches_each_byte_once_in_ever_larger_pieces():
    source = Source(40 * MIB)
    with source.open() as file:
        found = b"".join(iter(lambda: file.read(300_000), b""))

    assert found == source.content
    assert sum(stop - start for start, stop in source.asked) == 40 * MIB
    assert max(stop - start for start, stop in source.asked) == 8 * MIB
    assert len(source.asked) <= 10


def test_one_look_fetches_no_more_than_itself():
    source = Source(40 * MIB)
    with source.open() as file:
        file.seek(-8, io.SEEK_END)
        file.read(8)
        file.seek(5 * MIB)
        file.read(100)

    assert source.asked == [(40 * MIB - 8, 40 * MIB), (5 * MIB, 5 * MIB + 2**16)]


def test_of_a_server_without_ranges_blocks_that_go_meanwhile_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote_version, "FIRST_WAIT_SECONDS", 0.0)
    source = Source(3 * MIB + 5)
    source.has_ranges = False

    with source.open(tmp_path / "a") as file:
        file.read(3 * MIB // 2)
        shutil.rmtree(tmp_path / "a")
        assert file.read() == source.content[3 * MIB // 2 :]
        file.seek(0)  # where there is a hole now
        assert file.read() == source.content


def test_reading_anywhere_gives_the_bytes_that_are_there():
    source, random = Source(5 * MIB), np.random.default_rng(2)
    with source.open() as file:
        for _ in range(300):
            start, size = int(random.integers(0, 5 * MIB)), int(random.integers(0, 400_000))
            file.seek(start)
            assert file.read(size) == source.content[start : start + size]

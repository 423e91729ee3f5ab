import base64
import gzip
import hashlib
import json
import logging
import os
import resource
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest

from tokflow.errors import RawFileError
from tokflow.raw import RawSource, check_unchanged, partial, read_raw_file
from tokflow.raw.fetch import Copy, Retry, fetch
from tokflow.raw.hashes import HashCache, HashedFile, stamp_of
from tokflow.store.atomic import MANIFEST_NAME
from tokflow.store.manifest import broken_files, read_manifest
from tokflow_tests.raw.servers import QuietServer, make_certificate, needs_openssl, running

CONTENT = b"".join(b"line %04d\n" % number for number in range(1000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SOON = Retry(first_wait_seconds=0.01)


@dataclass
class Server:
    """One file on a web server, and how the server treats who asks for it."""

    content: bytes = CONTENT
    etag: str | None = '"v1"'
    last_modified: str | None = None
    has_ranges: bool = True
    has_head: bool = True
    is_chunked: bool = False
    has_length: bool = True
    encoding: str | None = None
    password: str | None = None
    statuses: list[int] = field(default_factory=list)
    """What to answer instead to the next requests."""
    breaks: list[int] = field(default_factory=list)
    """After how many bytes the next GETs break off."""
    stall_at: int | None = None
    skew: int = 0
    """By how many bytes ranges begin too early."""
    after_get: list[bytes] = field(default_factory=list)
    """What the file becomes (with a new ETag) when the next GETs are done."""
    requests: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    resumed: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    running: QuietServer | None = None

    def wrap(self, context: ssl.SSLContext) -> None:
        """Speak TLS from now on."""
        self.running.socket = context.wrap_socket(self.running.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/dump/a.txt"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    spec: Server

    def log_message(self, *_):
        """Say nothing."""

    def do_HEAD(self):
        self.answer(b"")

    def do_GET(self):
        self.answer(self.spec.content)
        if self.spec.after_get and not self.spec.breaks:
            self.spec.content = self.spec.after_get.pop(0)
            self.spec.etag = f'"{hashlib.sha256(self.spec.content).hexdigest()}"'

    def answer(self, body: bytes):
        spec, wanted = self.spec, self.headers.get("Range", "")
        spec.requests.append(f"{self.command} {wanted}".strip())
        spec.authorizations.append(self.headers.get("Authorization"))
        assert self.headers["Accept-Encoding"] == "identity"
        self.close_connection = True
        status = spec.statuses.pop(0) if spec.statuses else 200
        if self.command == "HEAD" and not spec.has_head:
            status = 403
        if spec.password and self.headers.get("Authorization") != spec.password:
            status = 401
        if status != 200:
            self.send_response(status)
            self.send_header("Retry-After", "1" if status == 429 else "soon")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(wanted[6:-1]) if wanted and spec.has_ranges else 0
        start = max(0, start - spec.skew)
        if start >= len(spec.content) and start:
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            last = len(spec.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
        for name, value in (
            ("ETag", spec.etag),
            ("Last-Modified", spec.last_modified),
            ("Content-Encoding", spec.encoding),
        ):
            if value is not None:
                self.send_header(name, value)
        if spec.is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif spec.has_length:
            self.send_header("Content-Length", str(len(spec.content) - start))
        self.end_headers()
        self.send_body(body[start:])

    def send_body(self, body: bytes):
        spec = self.spec
        if self.command == "GET" and spec.breaks:
            end = spec.breaks.pop(0)
            self.wfile.write(b"%x\r\n" % len(body) + body[:end] if spec.is_chunked else body[:end])
        elif self.command == "GET" and spec.stall_at is not None:
            self.wfile.write(body[: spec.stall_at])
            spec.resumed.wait(30)
        elif self.command == "GET" and spec.is_chunked:
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        else:
            self.wfile.write(body)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    spec = Server()
    handler = type("SpecHandler", (Handler,), {"spec": spec})
    with running(handler) as spec.running:
        spec.port = spec.running.server_port
        yield spec
        spec.resumed.set()


def source_of(url: str, key: str = "en/a.txt") -> RawSource:
    return RawSource(key=key, url=url, is_local=False)


def fetched(server: Server, store: Path, **options) -> Copy:
    return fetch(source_of(server.url), store=store, retry=SOON, **options)


def refusal(server: Server, store: Path, **options) -> str:
    with pytest.raises(RawFileError) as raised:
        fetched(server, store, **options)
    return str(raised.value)


def names(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "raw/en/a.txt").iterdir())


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
    assert (manifest.stage, manifest.dataset, manifest.partition) == (
        "raw",
        "shakespeare",
        "en/a.txt",
    )
    assert (manifest.fingerprint, manifest.parents) == (SHA256, {"content": SHA256})
    assert dict(manifest.counts) == {"num_bytes": 10_000}
    assert broken_files(raw.path.parent, manifest) == []
    assert names(store) == [".lock", ".source.json", SHA256[:16]]
    check_unchanged(raw)


def test_an_unchanged_remote_file_costs_one_question(server: Server, tmp_path: Path):
    first = read_raw_file(source_of(server.url), store=tmp_path)
    server.requests.clear()

    second = read_raw_file(source_of(server.url), store=tmp_path)

    assert server.requests == ["HEAD"]
    assert second == first


@pytest.mark.parametrize(
    ("etag", "last_modified", "num_downloads"),
    [
        ('"v1"', None, 1),
        (None, "Thu, 01 Jan 2026 00:00:00 GMT", 1),
        ('W/"v1"', None, 1),
        (None, None, 1),  # the size alone
    ],
)
def test_a_version_is_known_by_whatever_the_server_tells(
    etag: str | None, last_modified: str | None, num_downloads: int, server: Server, tmp_path: Path
):
    server.etag, server.last_modified = etag, last_modified

    copies = [fetched(server, tmp_path), fetched(server, tmp_path)]

    assert [copy.is_new for copy in copies] == [True, False]
    assert server.requests.count("GET") == num_downloads


def test_a_file_of_which_the_server_tells_nothing_is_fetched_each_time(
    server: Server, tmp_path: Path
):
    server.etag, server.is_chunked = None, True

    copies = [fetched(server, tmp_path), fetched(server, tmp_path)]

    assert [copy.is_new for copy in copies] == [True, True]
    assert copies[0] == copies[1]


def test_a_new_version_is_fetched_to_a_folder_of_its_own(server: Server, tmp_path: Path):
    old = fetched(server, tmp_path)
    server.content, server.etag = b"new", '"v2"'

    new = fetched(server, tmp_path)

    assert (old.path.read_bytes(), new.path.read_bytes()) == (CONTENT, b"new")


def test_an_empty_file_is_fetched(server: Server, tmp_path: Path):
    server.content = b""

    copy = fetched(server, tmp_path)

    assert (copy.path.read_bytes(), copy.num_bytes) == (b"", 0)


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


def test_a_server_without_ranges_is_asked_for_all_again(server: Server, tmp_path: Path):
    server.breaks, server.has_ranges = [3000], False

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "GET", "HEAD", "GET bytes=3000-", "HEAD"]


def test_a_server_that_gives_another_range_is_asked_for_all(server: Server, tmp_path: Path):
    server.breaks, server.skew = [3000], 500

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "GET", "HEAD", "GET bytes=3000-", "GET", "HEAD"]


def test_a_file_that_ends_before_the_part_does_is_asked_for_whole(
    server: Server, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(f"{fetch.__module__}.BLOCK_BYTES", 1000)
    server.is_chunked, server.breaks = True, [3000]
    with pytest.raises(RawFileError):
        fetch(source_of(server.url), store=tmp_path, retry=Retry(num_tries=1))
    server.content = CONTENT[:2000]

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT[:2000]
    assert server.requests[2:] == ["HEAD", "GET bytes=3000-", "GET", "HEAD"]


def test_tries_are_counted_anew_when_a_block_has_arrived(
    server: Server, tmp_path: Path, monkeypatch
):
    server.breaks = [1000] * 9
    with monkeypatch.context() as small:
        small.setattr(f"{fetch.__module__}.BLOCK_BYTES", 1000)
        assert fetched(server, tmp_path / "small").sha256 == SHA256
    server.breaks = [1000] * 9

    told = refusal(server, tmp_path / "large")

    assert "found 5,000 of 10,000 bytes, 5 times in a row;" in told


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


def test_a_part_of_a_version_that_was_replaced_and_came_back_is_not_taken_up(
    server: Server, tmp_path: Path, monkeypatch
):
    server.breaks = [3000, 0, 0, 0, 0]
    refusal(server, tmp_path)
    server.content, server.etag, server.breaks = bytes(10_000), '"v2"', [5000]
    with monkeypatch.context() as crash:
        # A process killed before it wrote down what it had begun.
        crash.setattr(partial.Part, "_sync", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fetched(server, tmp_path)
    server.content, server.etag = CONTENT, '"v1"'

    assert fetched(server, tmp_path).path.read_bytes() == CONTENT


def test_a_file_that_changes_during_the_download_is_fetched_again(server: Server, tmp_path: Path):
    server.after_get = [b"second version"]

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == b"second version"
    assert server.requests == ["HEAD", "GET", "HEAD", "HEAD", "GET", "HEAD"]


def test_a_file_that_never_stops_changing_is_an_error(server: Server, tmp_path: Path):
    server.after_get = [b"%d" % number for number in range(9)]

    assert refusal(server, tmp_path) == (
        f"{server.url}: expected a file that can be read, found another version of the file after "
        "the download than before, 5 times in a row; run again when the server answers; what has "
        "arrived is kept"
    )


def test_a_download_that_stays_cut_is_never_taken_for_whole(server: Server, tmp_path: Path):
    server.breaks = [3000, 0, 0, 0, 0]

    assert refusal(server, tmp_path) == (
        f"{server.url}: expected a file that can be read, found 3,000 of 10,000 bytes, 5 times in "
        "a row; run again when the server answers; what has arrived is kept"
    )
    assert not list(tmp_path.rglob(MANIFEST_NAME))


def test_what_arrived_in_an_earlier_run_is_not_asked_for_again(server: Server, tmp_path: Path):
    server.breaks = [3000, 0, 0, 0, 0]
    refusal(server, tmp_path)
    server.requests.clear()
    calls: list[tuple[int, int | None]] = []

    copy = fetched(server, tmp_path, progress=lambda *call: calls.append(call))

    assert server.requests == ["HEAD", "GET bytes=3000-", "HEAD"]
    assert calls == [(10_000, 10_000)]
    assert copy.path.read_bytes() == CONTENT


def test_a_part_of_which_more_is_lost_than_was_written_down_begins_again(
    server: Server, tmp_path: Path
):
    server.breaks = [3000, 0, 0, 0, 0]
    refusal(server, tmp_path)
    file = next(path for path in tmp_path.rglob(".part-*") if path.suffix != ".json")
    os.truncate(file, 2999)
    server.requests.clear()

    assert fetched(server, tmp_path).path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "GET", "HEAD"]


def test_bytes_after_what_was_written_down_are_not_trusted(server: Server, tmp_path: Path):
    server.breaks = [3000, 0, 0, 0, 0]
    refusal(server, tmp_path)
    file = next(path for path in tmp_path.rglob(".part-*") if path.suffix != ".json")
    with file.open("ab") as written:
        written.write(bytes(500))

    assert fetched(server, tmp_path).path.read_bytes() == CONTENT


def test_a_part_that_was_complete_when_the_process_died_is_not_downloaded_again(
    server: Server, tmp_path: Path
):
    server.statuses = [200, 200, 404]
    refusal(server, tmp_path)
    server.requests.clear()

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "HEAD"]


def test_a_killed_download_goes_on_where_it_was(server: Server, tmp_path: Path):
    server.stall_at = 2000
    code = f"""
from pathlib import Path
from tokflow.raw import RawSource, fetch, partial, read_raw_file
partial.SYNC_BYTES = fetch.BLOCK_BYTES = 1000
source = RawSource(key="en/a.txt", url={server.url!r}, is_local=False)
read_raw_file(source, store=Path({str(tmp_path)!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_for_part(tmp_path, num_bytes=2000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.stall_at = None
    server.resumed.set()

    copy = fetched(server, tmp_path)

    assert copy.path.read_bytes() == CONTENT
    assert server.requests[-3:] == ["HEAD", "GET bytes=2000-", "HEAD"]
    assert names(tmp_path) == [".lock", ".source.json", SHA256[:16]]


def wait_for_part(store: Path, *, num_bytes: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for sidecar in store.rglob(".part-????????????????.json"):
            if json.loads(sidecar.read_text())["num_bytes"] == num_bytes:
                return
        time.sleep(0.01)
    raise TimeoutError


def test_two_that_fetch_the_same_file_download_it_once(server: Server, tmp_path: Path):
    copies: list[Copy] = []
    threads = [
        threading.Thread(target=lambda: copies.append(fetched(server, tmp_path))) for _ in range(3)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert server.requests.count("GET") == 1
    assert sorted(copy.is_new for copy in copies) == [False, False, True]


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

    assert caplog.messages == [
        f"{server.url}: HTTP status 429 (Too Many Requests); trying again in 1.0 s"
    ]


def test_a_server_that_stays_busy_is_an_error_that_names_the_earlier_copy(
    server: Server, tmp_path: Path
):
    copy = fetched(server, tmp_path)
    server.statuses = [503] * 5

    assert refusal(server, tmp_path) == (
        f"{server.url}: expected a file that can be read, found HTTP status 503 (Service "
        "Unavailable), 5 times in a row; run again when the server answers, or move the earlier "
        f"copy {copy.path} out of the store and name it under raw.files"
    )


def test_a_server_that_does_not_answer_is_an_error_though_a_copy_is_there(
    server: Server, tmp_path: Path
):
    fetched(server, tmp_path)
    nobody = source_of("http://127.0.0.1:1/a.txt")

    with pytest.raises(RawFileError) as raised:
        fetch(nobody, store=tmp_path, retry=Retry(num_tries=2, first_wait_seconds=0.01))

    assert str(raised.value) == (
        "http://127.0.0.1:1/a.txt: expected a file that can be read, found ConnectionRefusedError: "
        "[Errno 111] Connection refused, 2 times in a row; run again when the server answers; "
        "what has arrived is kept"
    )


def test_offline_takes_the_newest_copy_without_asking(server: Server, tmp_path: Path):
    copy = fetched(server, tmp_path)
    server.requests.clear()

    raw = read_raw_file(source_of(server.url), store=tmp_path, offline=True)

    assert (raw.path, server.requests) == (copy.path, [])
    (copy.path.parent / MANIFEST_NAME).unlink()
    assert refusal(server, tmp_path, offline=True) == (
        f"{server.url}: expected a complete copy in {tmp_path}/raw/en/a.txt, as asked not to use "
        "the network, found none; fetch it once without `offline`"
    )


@pytest.mark.parametrize(
    ("status", "found", "remedy", "requests"),
    [
        (404, "404 (Not Found)", "", ["HEAD"]),
        (401, "401 (Unauthorized)", "give credentials that may read it, or ", ["HEAD"]),
        (403, "403 (Forbidden)", "give credentials that may read it, or ", ["HEAD", "GET"]),
    ],
)
def test_a_refusal_is_not_tried_again(
    status: int, found: str, remedy: str, requests: list[str], server: Server, tmp_path: Path
):
    server.statuses = [status] * 9

    assert refusal(server, tmp_path) == (
        f"{server.url}: expected a file that can be read, found HTTP status {found}; "
        f"{remedy}correct the URL under raw.files"
    )
    assert server.requests == requests


def test_a_server_that_refuses_head_is_asked_by_get(server: Server, tmp_path: Path):
    server.has_head = False

    copies = [fetched(server, tmp_path), fetched(server, tmp_path)]

    assert [copy.is_new for copy in copies] == [True, False]


def test_an_answer_whose_end_cannot_be_told_from_a_break_is_refused(server: Server, tmp_path: Path):
    server.has_length = False

    assert refusal(server, tmp_path) == (
        f"{server.url}: expected a Content-Length or chunks, without which a cut download looks "
        "whole, found neither; download it by other means and name the local file under raw.files"
    )


def test_a_gz_file_that_a_server_declares_as_encoded_is_kept_as_it_is(
    server: Server, tmp_path: Path
):
    server.content, server.encoding = gzip.compress(CONTENT), "gzip"
    source = source_of(server.url.replace("a.txt", "a.txt.gz"), key="a.txt.gz")

    copy = fetch(source, store=tmp_path, retry=SOON)

    assert copy.path.read_bytes() == server.content


def test_a_server_that_compresses_unasked_is_refused(server: Server, tmp_path: Path):
    server.content, server.encoding = gzip.compress(CONTENT), "gzip"

    assert refusal(server, tmp_path) == (
        f"{server.url}: expected the bytes of the file, as asked for with `Accept-Encoding: "
        "identity`, found the content encoded as 'gzip'; download it with `curl --compressed` and "
        "name the local file under raw.files"
    )


def test_no_secret_of_a_url_is_written_or_shown(server: Server, tmp_path: Path, caplog):
    url = server.url.replace("//", "//user:pass%2Fword@") + "?token=hidden"
    server.password = f"Basic {base64.b64encode(b'user:pass/word').decode()}"
    server.breaks, server.statuses = [3000], [500]
    caplog.set_level(logging.DEBUG)

    raw = read_raw_file_soon(url, tmp_path)
    server.statuses = [404]
    with pytest.raises(RawFileError) as raised:
        read_raw_file_soon(url, tmp_path)

    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    told = "\n".join([caplog.text, str(raised.value), repr(raised.value.__context__)])
    assert raw.path.read_bytes() == CONTENT
    known = json.loads((tmp_path / "raw/en/a.txt/.source.json").read_text())
    assert known["url"] == server.url
    assert known["url_sha256"] == hashlib.sha256(f"{server.url}?token=hidden".encode()).hexdigest()
    for secret in ("pass", "word", "hidden", "user:", server.password[6:]):
        assert not [content for content in written if secret.encode() in content]
        assert secret not in told


def read_raw_file_soon(url: str, store: Path) -> Copy:
    return fetch(source_of(url), store=store, retry=SOON)


def test_a_url_that_cannot_be_asked_for_is_not_tried_again(tmp_path: Path):
    url = f"http://{'a' * 64}.b/a.txt"

    with pytest.raises(RawFileError) as raised:
        fetch(source_of(url), store=tmp_path)

    told = str(raised.value)
    assert told.startswith(f"{url}: expected a file that can be read, found LocationParseError: ")
    assert told.endswith("; correct the URL under raw.files")


@needs_openssl
def test_a_certificate_that_is_not_trusted_is_not_tried_again(server: Server, tmp_path: Path):
    _, context = make_certificate(tmp_path, "IP:127.0.0.1")
    server.wrap(context)
    url = server.url.replace("http:", "https:")

    with pytest.raises(RawFileError) as raised:
        fetch(source_of(url), store=tmp_path)

    assert str(raised.value) == (
        f"{url}: expected a file that can be read, found a certificate that is not trusted "
        "(self-signed certificate); correct the URL, or set SSL_CERT_FILE to the certificates to "
        "trust"
    )


def test_a_url_that_differs_in_its_query_is_another_file(server: Server, tmp_path: Path):
    fetched(server, tmp_path)

    copy = fetch(source_of(f"{server.url}?file=b"), store=tmp_path, retry=SOON)

    assert copy.is_new


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
    assert str(raised.value) == (
        f"{copy.path}: expected 10,000 bytes with sha256 {SHA256[:16]}…, found 10,000 bytes with "
        f"sha256 {damaged[:16]}…; delete the folder {copy.path.parent} and run again to fetch it "
        "anew"
    )


def test_a_wrong_remembered_checksum_does_not_make_a_copy_damaged(server: Server, tmp_path: Path):
    copy = fetched(server, tmp_path)
    os.utime(copy.path, (1_000_000_000, 1_000_000_000))
    read_raw_file(source_of(server.url), store=tmp_path)
    wrong = HashedFile(copy.path, stamp_of(copy.path), "0" * 64)
    HashCache(tmp_path).keep(wrong, started=time.time())

    raw = read_raw_file(source_of(server.url), store=tmp_path)

    assert (raw.sha256, raw.remembered) == (SHA256, "0" * 64)
    assert read_raw_file(source_of(server.url), store=tmp_path).remembered is None


def test_a_memory_of_the_newest_copy_that_is_damaged_costs_a_download(
    server: Server, tmp_path: Path
):
    fetched(server, tmp_path)
    for text in ("{", "[]", '{"validator": {}}', '{"validator": {"x": 1}}'):
        (tmp_path / "raw/en/a.txt/.source.json").write_text(text)

        assert fetched(server, tmp_path).is_new


def test_a_raw_file_may_be_called_as_the_manifest_is(server: Server, tmp_path: Path):
    copy = fetch(source_of(server.url, key="manifest.json"), store=tmp_path, retry=SOON)

    assert copy.path.name == "_manifest.json"
    assert broken_files(copy.path.parent, read_manifest(copy.path.parent)) == []


def test_a_disk_that_takes_no_more_is_an_error(server: Server, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(f"{fetch.__module__}.BLOCK_BYTES", 2000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        told = refusal(server, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file = next(path for path in tmp_path.rglob(".part-*") if path.suffix != ".json")

    assert told == (
        f"{file}: expected room for 10,000 bytes, found File too large; free disk space and run "
        "again; what has arrived is kept"
    )
    server.requests.clear()
    assert fetched(server, tmp_path).path.read_bytes() == CONTENT
    assert server.requests == ["HEAD", "GET bytes=4000-", "HEAD"]


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    file_system = fsspec.filesystem("memory")
    file_system.store.clear()
    yield file_system
    file_system.store.clear()


def test_an_object_of_a_store_is_fetched_once_for_each_version(memory, tmp_path: Path):
    source = source_of("memory://bucket/a.txt")
    memory.pipe("/bucket/a.txt", CONTENT)
    copies = [fetch(source, store=tmp_path, retry=SOON) for _ in range(2)]
    memory.pipe("/bucket/a.txt", b"new")

    copies.append(fetch(source, store=tmp_path, retry=SOON))

    assert [copy.is_new for copy in copies] == [True, False, True]
    assert [copy.path.read_bytes() for copy in copies] == [CONTENT, CONTENT, b"new"]


def test_a_missing_object_is_an_error(memory, tmp_path: Path):
    with pytest.raises(RawFileError) as raised:
        fetch(source_of("memory://bucket/a.txt"), store=tmp_path, retry=SOON)

    assert str(raised.value) == (
        "memory://bucket/a.txt: expected a file that can be read, found FileNotFoundError: "
        "/bucket/a.txt; correct the URL under raw.files, or the credentials it is read with"
    )


def test_what_fsspec_has_cached_is_asked_for_anew(memory, tmp_path: Path, monkeypatch):
    cached: dict[str, dict] = {}
    ask = type(memory).info

    def info(self, path: str) -> dict:
        return cached.setdefault(path, ask(self, path))

    monkeypatch.setattr(type(memory), "info", info)
    monkeypatch.setattr(type(memory), "invalidate_cache", lambda *_: cached.clear())
    memory.pipe("/bucket/a.txt", CONTENT)
    fetch(source_of("memory://bucket/a.txt"), store=tmp_path, retry=SOON)
    memory.pipe("/bucket/a.txt", b"new")

    copy = fetch(source_of("memory://bucket/a.txt"), store=tmp_path, retry=SOON)

    assert copy.path.read_bytes() == b"new"


def test_an_object_store_that_breaks_off_is_taken_up_where_it_broke(
    memory, tmp_path: Path, monkeypatch
):
    memory.pipe("/bucket/a.txt", CONTENT)
    file_class = type(memory.open("/bucket/a.txt"))
    reads: list[int] = []

    def read(self, _: int = -1) -> bytes:
        reads.append(self.tell())
        if len(reads) == 2:
            raise RuntimeError("broken by s3://bucket/a.txt?signature=secret")
        return super(file_class, self).read(4000)

    monkeypatch.setattr(file_class, "read", read, raising=False)

    copy = fetch(source_of("memory://bucket/a.txt"), store=tmp_path, retry=SOON)

    assert copy.path.read_bytes() == CONTENT
    assert reads == [0, 4000, 4000, 8000, 10_000]

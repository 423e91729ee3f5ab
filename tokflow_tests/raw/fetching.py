"""One file on a web server, how the server treats who asks for it, and how it is fetched."""

import hashlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tokflow.errors import RawFileError
from tokflow.raw import RawFile, RawSource, read_raw_files
from tokflow_tests.raw.servers import QuietServer, running

CONTENT = b"".join(b"line %04d\n" % number for number in range(1000))


SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """One file on a web server, and how the server treats who asks for it."""

    content: bytes = CONTENT
    name: str = "a.txt"
    etag: str | None = '"v1"'
    last_modified: str | None = None
    has_ranges: bool = True
    most_of_range: int | None = None
    """Bytes of a range that are sent at most."""
    tells_size: bool = True
    """False: an answer with a range does not tell how large the file is."""
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
    """What the file becomes (with a new ETag) while the next GETs are answered."""
    requests: list[str] = field(default_factory=list)
    num_sent: int = 0
    """Bytes of the file that were sent."""
    moved_to: str = ""
    """Where requests for /moved are led; `#` stands for their number."""
    asked: list[str] = field(default_factory=list)
    """Methods and what they named."""
    hosts: list[str | None] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    resumed: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    running: QuietServer | None = None

    def wrap(self, context: ssl.SSLContext) -> None:
        """Speak TLS from now on."""
        self.running.socket = context.wrap_socket(self.running.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/dump/{self.name}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    spec: Server

    def log_message(self, *_):
        """Say nothing."""

    def do_HEAD(self):
        self.answer(b"")

    def do_GET(self):
        self.answer(self.spec.content)

    def answer(self, body: bytes):
        spec, wanted = self.spec, self.headers.get("Range", "")
        spec.requests.append(f"{self.command} {wanted}".strip())
        spec.asked.append(f"{self.command} {self.path}")
        spec.hosts.append(self.headers.get("Host"))
        spec.authorizations.append(self.headers.get("Authorization"))
        assert self.headers["Accept-Encoding"] == "identity"
        self.close_connection = True
        if self.path.endswith("/moved"):
            self.send_response(302)
            self.send_header("Location", spec.moved_to.replace("#", str(len(spec.asked))))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
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
        first, _, last = wanted[6:].partition("-") if spec.has_ranges else ("", "", "")
        start = max(0, int(first or 0) - spec.skew)
        stop = min(int(last) + 1, len(spec.content)) if last else len(spec.content)
        if spec.most_of_range and last:
            stop = min(stop, start + spec.most_of_range)
        if start >= len(spec.content) and start:
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        is_range = start > 0 or bool(last)
        self.send_response(206 if is_range else 200)
        if is_range:
            total = len(spec.content) if spec.tells_size else "*"
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{total}")
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
            self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.send_body(body[start:stop])

    def send_body(self, body: bytes):
        spec = self.spec
        if self.command == "GET" and spec.after_get and not spec.breaks:
            # Before the last byte, behind which the client asks again at once.
            spec.content = spec.after_get.pop(0)
            spec.etag = f'"{hashlib.sha256(spec.content).hexdigest()}"'
        if self.command == "GET" and spec.breaks:
            end = spec.breaks.pop(0)
            self.wfile.write(b"%x\r\n" % len(body) + body[:end] if spec.is_chunked else body[:end])
        elif self.command == "GET" and spec.stall_at is not None:
            self.wfile.write(body[: spec.stall_at])
            spec.resumed.wait(30)
        elif self.command == "GET" and spec.is_chunked:
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        else:
            for begin in range(0, len(body), 65_536):
                # Counted first: who has the last byte may look at once.
                spec.num_sent += len(body[begin : begin + 65_536])
                self.wfile.write(body[begin : begin + 65_536])


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Answer as `server` says until the block ends."""
    with running(type("Answering", (Handler,), {"spec": server})) as server.running:
        server.port = server.running.server_port
        yield server
        server.resumed.set()


def source_of(url: str, key: str = "en/a.txt") -> RawSource:
    return RawSource(key=key, url=url, is_local=False)


def read_raw_file(source: RawSource, **options) -> RawFile:
    return read_raw_files([source], **options)[source.key]


def fetched(server: Server, store: Path, **options) -> RawFile:
    return read_raw_file(source_of(server.url), store=store, **options)


def refusal(server: Server, store: Path, **options) -> str:
    with pytest.raises(RawFileError) as raised:
        fetched(server, store, **options)
    return str(raised.value)


def names(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "raw/en/a.txt").iterdir())

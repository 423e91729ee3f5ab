"""An S3 server on this machine, moto's from the package index, which can be told to fail.

object_store.fail("503", "PUT", "*/manifests/*")          # the next one, of this bucket
object_store.fail("reset", "COMPLETE", first=2, times=3)  # done, but the answer is lost
object_store.fail("slow", seconds=0.02, times=None)       # a latency of 20 ms from now on
with object_store.counted() as count:                     # Counter({"GET": 3, "LIST": 1})
    ...
"""

import io
import logging
import random
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any, Literal

import pytest

Failure = Literal[
    "403", "404", "409", "412", "500", "503", "error in 200", "drop", "reset", "truncate", "flip",
    "slow",
]  # fmt: skip
"""Answers with an error (`error in 200`: in the body of what begins as a success), connections that
break before (`drop`) or after (`reset`) the request was carried out or in the middle of the body,
one bit of the body that is another (and no checksum beside it that tells), and slow answers."""

_CODES = {
    "403": "AccessDenied",
    "404": "NoSuchUpload",
    "409": "ConditionalRequestConflict",
    "412": "PreconditionFailed",
    "500": "InternalError",
    "503": "SlowDown",
    "error in 200": "InternalError",
}


_CHECKSUM = "x-amz-checksum"


@dataclass(frozen=True, slots=True)
class Request:
    """One request so far."""

    kind: str
    """GET, HEAD, PUT, COPY, DELETE, LIST (of objects) or BUCKET; of multipart uploads BEGIN, PART,
    PART_COPY, COMPLETE, ABORT, PARTS (of one) and UPLOADS."""
    bucket: str
    key: str
    """Of the object; empty where it is about the bucket."""
    received: int = 0
    """Bytes of the body of the answer."""


@dataclass
class Fault:
    """Some requests of a bucket that are not answered as they should be."""

    do: Failure
    bucket: str
    kind: str = "*"
    """As `fnmatch` has it, such as `PART*`."""
    key: str = "*"
    """As `fnmatch` has it; of LIST its prefix."""
    first: int = 1
    """The first of those that match is 1."""
    times: int | None = 1
    """None: each from the first on."""
    seconds: float = 0
    chance: float = 1
    """Of those that match, so many are met, chosen by `seed`."""
    seed: int = 0
    then: Callable[[], object] = lambda: None
    """Called when one is met, before it is answered; of `drop` in place of what it asks for."""
    seen: int = 0
    met: int = 0

    def meets(self, request: Request) -> bool:
        """Return whether it is this request's turn, and count it."""
        if request.bucket != self.bucket or not fnmatchcase(request.kind, self.kind):
            return False
        if not fnmatchcase(request.key, self.key):
            return False
        self.seen += 1
        if self.seen < self.first or (self.times is not None and self.met >= self.times):
            return False
        if random.Random(f"{self.seed} {self.seen}").random() >= self.chance:
            return False
        self.met += 1
        return True


@dataclass
class ObjectStore:
    """A running server, with a bucket that is empty at first."""

    endpoint: str
    bucket: str = "bucket"
    requests: list[Request] = field(default_factory=list, repr=False)
    """Those so far, also of other buckets."""
    faults: list[Fault] = field(default_factory=list, repr=False)
    """Those of all buckets."""

    @property
    def url(self) -> str:
        """The bucket."""
        return f"s3://{self.bucket}"

    def environment(self) -> dict[str, str]:
        """Return the variables by which libraries reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "not-to-be-shown",
            "AWS_DEFAULT_REGION": "us-east-1",
            "no_proxy": "127.0.0.1",
        }

    def with_new_bucket(self) -> "ObjectStore":
        """Return the same server with another bucket."""
        bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")
        urllib.request.urlopen(request).close()
        return ObjectStore(self.endpoint, bucket, self.requests, self.faults)

    def fail(self, do: Failure, kind: str = "*", key: str = "*", **how: Any) -> Fault:
        """Let requests of this bucket fail from now on; see `Fault`."""
        fault = Fault(do, self.bucket, kind, key, **how)
        self.faults.append(fault)
        return fault

    def recover(self) -> None:
        """Let all requests of this bucket be answered as they should be."""
        self.faults[:] = [fault for fault in self.faults if fault.bucket != self.bucket]

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Yield how many requests of each kind this bucket gets in the block, when it has ended."""
        count, before = Counter[str](), len(self.requests)
        yield count
        count.update(each.kind for each in self.requests[before:] if each.bucket == self.bucket)

    def keys(self) -> list[str]:
        """Return the keys of the objects that are there, in order, without a request; in the
        process that serves alone."""
        return sorted(self._objects())

    def contents(self) -> dict[str, bytes]:
        """Return the bytes of the objects that are there by their keys; as `keys`."""
        return {key: each.value for key, each in self._objects().items()}

    def put(self, key: str, data: bytes) -> None:
        """Put an object under any key, also one that no client sends, without a request."""
        _backend().put_object(self.bucket, key, data)

    def remove(self, key: str) -> None:
        """Remove an object without a request."""
        _backend().delete_object(self.bucket, key)

    def forget(self) -> None:
        """Forget the requests and faults of all buckets, and the objects of the others."""
        self.requests.clear()
        self.faults.clear()
        for bucket in [name for name in _backend().buckets if name != self.bucket]:
            del _backend().buckets[bucket]

    def age(self, *, seconds: float) -> None:
        """Let the objects that are there be older."""
        for each in self._objects().values():
            each.last_modified -= timedelta(seconds=seconds)

    def _objects(self) -> dict[str, Any]:
        keys = _backend().buckets[self.bucket].keys
        found = {key: keys[key] for key in list(keys)}
        return {key: of for key, of in found.items() if hasattr(of, "value")}  # no delete markers


def _backend() -> Any:
    from moto.backends import get_backend

    return get_backend("s3")["123456789012"]["aws"]  # type: ignore[index]


def lead_to(store: ObjectStore, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the environment lead to a server, and to a cache."""
    for name, value in {"TOKFLOW_CACHE": str(cache), **store.environment()}.items():
        patch.setenv(name, value)


UNIT = 1 << 14
"""Where parts are short, 5 of these are what 5 MiB, the least that S3 takes, are elsewhere."""


def let_parts_be_short(patch: pytest.MonkeyPatch) -> None:
    """Let parts of uploads, and what is copied on the server, be of few bytes, on both sides."""
    patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 5 * UNIT)
    patch.setattr("tokflow.store.remote.s3.SHORT_BYTES", 5 * UNIT)
    patch.setattr("tokflow.store.remote.s3.PART_BYTES", 10 * UNIT)
    patch.setattr("tokflow.store.remote.s3.COPIED_BYTES", 16 * UNIT)
    patch.setattr("tokflow.exports.token_files.SHORT_BYTES", 5 * UNIT)


@contextmanager
def another_machine(server: ObjectStore, folder: Path) -> Iterator[ObjectStore]:
    """Yield a new bucket that the environment leads to in the block, with the cache `folder/cache`,
    as it does on a machine that builds into it."""
    store = server.with_new_bucket()
    with pytest.MonkeyPatch.context() as patch:
        lead_to(store, folder / "cache", patch)
        yield store


@contextmanager
def serve_objects() -> Iterator[ObjectStore]:
    """Serve until the block ends; there is no bucket yet."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    store = ObjectStore("")
    application = _Application(DomainDispatcherApplication(create_backend_app), store)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    store.endpoint = f"http://127.0.0.1:{server.port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()


class _Application:
    """What answers requests: another application, but for those that a fault meets."""

    def __init__(self, answers: Callable[..., Iterable[bytes]], store: ObjectStore) -> None:
        self._answers = answers
        self._store = store
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        request = _request_of(environ)
        with self._lock:
            faults = [fault for fault in self._store.faults if fault.meets(request)]
        status, headers, body = "", [], b""
        failure = next((fault.do for fault in faults if fault.do != "slow"), None)
        if failure in _CODES:
            _drain(environ)
            code = _CODES[failure]
            text = f"<Error><Code>{code}</Code><Message>as told</Message></Error>"
            is_of_keys = (request.kind, failure) == ("DELETE", "error in 200")
            body = (f"<DeleteResult>{text}</DeleteResult>" if is_of_keys else text).encode()
            headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
            status = "200 OK" if failure == "error in 200" else f"{failure} {code}"
        elif failure == "drop":
            _drain(environ)
        else:
            status, headers, body = self._answer(environ)
        for fault in faults:
            fault.then()
            time.sleep(fault.seconds)
        self._store.requests.append(replace(request, received=len(body)))
        if failure in {"drop", "reset"}:
            environ["werkzeug.socket"].shutdown(SHUT_RDWR)
        if failure == "flip" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
            headers = [each for each in headers if not each[0].lower().startswith(_CHECKSUM)]
        start(status or "500 none", headers)
        return _cut_off(environ, body) if failure == "truncate" else [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        told: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> None:
            told[:] = status, headers

        if environ.get("HTTP_IF_NONE_MATCH") or environ.get("HTTP_IF_MATCH"):
            # Two of moto's threads would both find no object there, and both put one.
            environ["wsgi.input"] = io.BytesIO(_drain(environ))
            with self._lock:
                body = b"".join(self._answers(environ, start))
        else:
            body = b"".join(self._answers(environ, start))
        return told[0], told[1], body


def _request_of(environ: dict[str, Any]) -> Request:
    bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
    query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
    kind = _kind_of(environ, key, query)
    if kind in {"LIST", "UPLOADS"}:
        key = query.get("prefix", "")
    return Request(kind, bucket, key)


def _kind_of(environ: dict[str, Any], key: str, query: dict[str, str]) -> str:
    method = environ["REQUEST_METHOD"]
    is_copy = "HTTP_X_AMZ_COPY_SOURCE" in environ
    match method:
        case "GET" if not key:
            return "UPLOADS" if "uploads" in query else "LIST"
        case "GET":
            return "PARTS" if "uploadId" in query else "GET"
        case "PUT" if "uploadId" in query:
            return "PART_COPY" if is_copy else "PART"
        case "PUT" if key:
            return "COPY" if is_copy else "PUT"
        case "POST" if "uploads" in query:
            return "BEGIN"
        case "POST" if "uploadId" in query:
            return "COMPLETE"
        case "POST":
            return "DELETE"
        case "DELETE" if key:
            return "ABORT" if "uploadId" in query else "DELETE"
    return "HEAD" if method == "HEAD" else "BUCKET"


def _drain(environ: dict[str, Any]) -> bytes:
    from werkzeug.wsgi import get_input_stream

    return get_input_stream(environ).read()


def _cut_off(environ: dict[str, Any], body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    environ["werkzeug.socket"].shutdown(SHUT_RDWR)

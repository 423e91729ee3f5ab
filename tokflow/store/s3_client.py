"""Requests to S3, and to servers that speak as it does, by botocore's own client.

Credentials, profiles, region, endpoint, CA bundle and proxies are those that botocore finds in the
environment and in ~/.aws; beside them count fsspec's settings for s3, such as FSSPEC_S3_ANON=true
and FSSPEC_S3_REQUESTER_PAYS=true.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import lru_cache, partial
from threading import Lock
from typing import Any, TypeVar

from tokflow.store.positioned import write_range
from tokflow.store.request_errors import S3Error, Tries, status_of

_AT_ONCE = 64
"""Connections that are kept."""
_COUNTING = re.compile(r"AWS_|FSSPEC_|HOME$|.*_PROXY$", re.IGNORECASE)
"""Variables of the environment by which one client differs from another."""
_READ_BYTES = 1 << 18
_ABSENT = {"404", "NoSuchKey", "NoSuchVersion"}


T = TypeVar("T")


class S3Client:
    """Requests for the objects of one bucket.

    It may be used by several threads, and by a process that was forked, which connects anew; it
    goes to other processes as its URL. A request that fails in a way that may pass is made again,
    for about a minute.

    Raises: FileNotFoundError where an object is not there; S3Error for any other answer that is an
    error; what botocore raises where there is no answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.bucket, _, self.path = url.partition("://")[2].partition("/")
        self._tries = Tries(url)
        self._of_processes: dict[int, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return S3Client, (self.url,)

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a request about the bucket, by the name and the arguments that
        botocore has for it."""
        answer: dict[str, Any] = self._tries(lambda: self._asked(method, **arguments))
        return answer

    def read(self, key: str, start: int = 0, stop: int | None = None, **arguments: Any) -> bytes:
        """Return the bytes of an object between two positions, as a slice has them; of a whole
        object the server's checksum is compared. `arguments`: such as IfMatch, an ETag in quotes.
        """
        return self._read(lambda body: body.read(), b"", key, start, stop, **arguments)

    def read_to(self, file: int, key: str, start: int = 0, stop: int | None = None) -> int:
        """Write bytes of an object to where they are in an open file; return how many they are."""

        def write(body: Any) -> int:
            position = start
            while data := body.read(_READ_BYTES):
                position += write_range(file, data, position)
            return position - start

        return self._read(write, 0, key, start, stop)

    def _read(
        self, take: Callable[[Any], T], nothing: T, key: str, start: int, stop: int | None,
        **arguments: Any,
    ) -> T:  # fmt: skip
        """Return what `take` makes of the body; `nothing` where there is no byte."""
        if stop is not None and stop <= start:
            return nothing
        if (start, stop) != (0, None):
            last = "" if stop is None else stop - 1
            arguments["Range"] = f"bytes={start}-{last}"

        def read() -> T:
            body = self._asked("get_object", Key=key, **arguments)["Body"]
            with closing(body):  # entered by itself it gives bytes that nothing is compared with
                return take(body)

        try:
            return self._tries(read)
        except Exception as error:
            if status_of(error) != 416:  # it begins where the object has ended
                raise
            return nothing

    def pages(self, method: str, *markers: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield the answers to a request whose answer comes in pages, the next of which begins at
        these markers."""
        while True:
            page = self.ask(method, **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments |= {marker: page[f"Next{marker}"] for marker in markers}

    def _asked(self, method: str, **arguments: Any) -> Any:
        """Return the answer to one try."""
        process = os.getpid()
        if process not in self._of_processes:
            self._of_processes[process] = _client()
        ask = getattr(self._of_processes[process], method)
        try:
            answer = ask(Bucket=self.bucket, **arguments)
        except Exception as error:
            if not isinstance(refusal := getattr(error, "response", None), dict):
                raise
            refused = S3Error(refusal)
            if refused.code in _ABSENT:
                raise FileNotFoundError(str(refused)) from refused
            raise refused from error
        for of_object in answer.get("Errors", []):  # that was to be removed
            raise S3Error({"Error": of_object})
        return answer


def _client() -> Any:
    """Return botocore's client for this process and what its environment names now."""
    environment = tuple(sorted(of for of in os.environ.items() if _COUNTING.match(of[0])))
    with _locks.setdefault(os.getpid(), Lock()):  # one that a fork took over may be locked
        return _new_client(os.getpid(), environment)


_locks: dict[int, Lock] = {}


@lru_cache(maxsize=8)
def _new_client(_process: int, _environment: tuple[tuple[str, str], ...]) -> Any:
    from botocore import UNSIGNED  # late: it takes 0.3 s
    from botocore.config import Config
    from botocore.session import Session

    options = _options()
    of_client = {
        name: options[of]
        for of, name in {
            "endpoint_url": "endpoint_url", "use_ssl": "use_ssl", "key": "aws_access_key_id",
            "secret": "aws_secret_access_key", "token": "aws_session_token",
        }.items()
        if of in options
    }  # fmt: skip
    config = {
        "retries": {"total_max_attempts": 1}, "max_pool_connections": _AT_ONCE,
        "connect_timeout": 10, "read_timeout": 60,
    }  # fmt: skip
    if options.get("anon"):
        config["signature_version"] = UNSIGNED
    client = Session(profile=options.get("profile")).create_client(
        "s3", config=Config(**config), **{**of_client, **options.get("client_kwargs", {})}
    )
    added = options.get("s3_additional_kwargs", {})
    if options.get("requester_pays"):
        added = {"RequestPayer": "requester", **added}
    client.meta.events.register("provide-client-params.s3", partial(_with, added))
    return client


def _options() -> dict[str, Any]:
    """Return fsspec's settings for s3, of its files and of the environment as it is now."""
    from fsspec import config

    found: dict[str, dict[str, Any]] = {}
    config.set_conf_files(config.conf_dir, found)
    config.set_conf_env(found)
    return {**found.get("s3", {}), **found.get("s3a", {})}


def _with(added: dict[str, Any], params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
    """Return the arguments of a request with those of all requests that it takes, too."""
    return {name: of for name, of in added.items() if name in model.input_shape.members} | params

"""Requests for objects at a URL, each made until it is answered; what to do about those that fail;
and S3, and servers that speak as it does, asked by botocore's own client.

Credentials, profiles, region, endpoint, CA bundle and proxies of S3 are those that botocore finds
in the environment and in ~/.aws; beside them count fsspec's settings for s3, such as
FSSPEC_S3_ANON=true and FSSPEC_S3_REQUESTER_PAYS=true.
"""

import errno
import itertools
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from tokflow.errors import TokflowError
from tokflow.formatting import redact
from tokflow.store.streams import write_range
from tokflow.store.urls import safe_text, split_url

AT_ONCE = 32
"""Requests of one process under way at the same time: they wait, and take no core."""

NUM_TRIES = 14
"""Tries of a request, in about a minute: a store that is asked too often needs time to grow.
All tries are made here: the libraries below ask once."""
QUIET_TRIES = 3
"""Failures of a request that are not worth a line in the log."""
FIRST_TRIES = 4
"""Tries of the first request while the server cannot be reached: its address may be wrong."""
FIRST_WAIT_SECONDS = 0.1
"""Doubled after each try, less up to a half by chance, so that many do not come back at once."""
LONGEST_WAIT_SECONDS = 10.0

T = TypeVar("T")

_log = logging.getLogger(__name__)

_PASSING_CODES = {
    "BadDigest", "BandwidthLimitExceeded", "ConditionalRequestConflict", "IncompleteBody",
    "InternalError", "OperationAborted", "RequestLimitExceeded", "RequestTimeout",
    "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests",
    "XAmzContentSHA256Mismatch",
}  # fmt: skip
_NOT_REACHED = {"botocore.exceptions.ConnectionError", "aiohttp.client_exceptions.ClientOSError"}
_BROKEN_OFF = {
    "aiohttp.client_exceptions.ClientError",
    "botocore.exceptions.FlexibleChecksumError",
    "botocore.exceptions.HTTPClientError",
    "botocore.exceptions.IncompleteReadError",
    "botocore.parsers.ResponseParserError",
    "http.client.IncompleteRead",
}
_NO_CREDENTIALS = {
    "botocore.exceptions.NoCredentialsError",
    "botocore.exceptions.PartialCredentialsError",
    "botocore.exceptions.ProfileNotFound",
    "google.auth.exceptions.DefaultCredentialsError",
}
_REFUSED_CREDENTIALS = {
    "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
}  # fmt: skip
_OTHER_REGION = {
    "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
    "PermanentRedirect",
}  # fmt: skip
_SECRET_NAMES = re.compile(
    "ACCESS_KEY|ACCOUNT_KEY|SECRET|TOKEN|PASSW|CREDENTIAL|CONNECTION_STRING|SAS"
)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"} | dict.fromkeys(
    ("az", "abfs", "abfss"), "azure"
)


_OF_THIS_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""Error numbers that no library uses for a store."""


class RemoteStoreError(TokflowError, OSError):
    """A store at a URL does not do what it is asked for; its text has no secrets."""


class S3Error(Exception):
    """An answer of S3 that is an error."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        error, of = answer.get("Error", {}), answer.get("ResponseMetadata", {})
        self.code = str(error.get("Code", ""))
        """The word by which S3 calls it."""
        self.status = int(of.get("HTTPStatusCode", 0))
        self.is_page = "text/html" in of.get("HTTPHeaders", {}).get("content-type", "")
        words = (f"{self.code}:", error.get("Message"), error.get("Key"))
        super().__init__(" ".join(filter(None, words)))


class Tries:
    """Requests for objects below a URL, each tried until it is answered."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_reached = False

    def __call__(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, the first time that no failure which may pass keeps it.

        Raises: the last failure, or the first that will not pass.
        """
        wait = FIRST_WAIT_SECONDS
        for number in itertools.count(1):
            try:
                answer = ask()
                break
            except Exception as error:
                self._is_reached |= status_of(error) > 0 and not _is_page(error)
                if number >= (NUM_TRIES if self._is_reached else FIRST_TRIES):
                    raise
                status, is_of_network = status_of(error), (ConnectionError, TimeoutError)
                may_pass = code_of(error) in _PASSING_CODES or status in {408, 429} or status >= 500
                may_pass |= any(isinstance(each, is_of_network) for each in _chain(error))
                if not may_pass and not _kinds(error) & (_NOT_REACHED | _BROKEN_OFF):
                    raise
                if number > QUIET_TRIES:
                    found = error_of(self._url, error).found
                    _log.warning("%s: %s; trying again", redact(self._url), found)
            time.sleep(wait * random.SystemRandom().uniform(0.5, 1))
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        self._is_reached = True
        return answer


def code_of(error: BaseException) -> str:
    """Return the word by which S3 calls a failure; empty where it is none of S3's."""
    return next((each.code for each in _chain(error) if isinstance(each, S3Error)), "")


def status_of(error: BaseException) -> int:
    """Return the status of the answer, as HTTP has it; 0 where there was none."""
    statuses = (
        getattr(each, name, None)
        for each in _chain(error)
        for name in ("status", "status_code", "code")
    )
    return next((status for status in statuses if isinstance(status, int)), 0)


def is_of_this_disk(error: BaseException, path: Path | None) -> bool:
    """Return whether a failure is of the disk that `path` is on, and not of the store."""
    return isinstance(error, OSError) and (
        error.errno in _OF_THIS_DISK or (path is not None and error.filename == str(path))
    )


def error_of(url: str, error: Exception) -> RemoteStoreError:
    """Return a failure as an error with a remedy; no credentials of the environment are in it."""
    expected, remedy = _advice(url, error)
    text = safe_text(error, url)
    if any(secret in text for secret in _secrets()):
        text = type(error).__name__
    return RemoteStoreError(where=redact(url), expected=expected, found=text, remedy=remedy)


def _advice(url: str, error: Exception) -> tuple[str, str]:
    code, kinds, scheme = code_of(error), _kinds(error), split_url(url).scheme
    if isinstance(error, ImportError):
        extra = _EXTRAS.get(scheme)
        library = f"'dagster-tokflow[{extra}]'" if extra else f"the fsspec library for {scheme}"
        return f"the library for {scheme}:// URLs", f"pip install {library}"
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return "a scheme that fsspec knows, such as s3, gs or az", f"correct {scheme}://"
    if isinstance(error, ValueError) and "Invalid endpoint" in str(error):
        return "an endpoint with its scheme", "put https:// or http:// before AWS_ENDPOINT_URL"
    if _is_page(error):
        names = [of for of in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if os.environ.get(of)]
        asked = [f"{of}={redact(os.environ[of])}" for of in names] or ["AWS_ENDPOINT_URL"]
        return "an endpoint that speaks S3; this one answers with a web page", (
            f"correct the endpoint in the environment, {asked[0]}, or log in to the proxy before it"
        )
    if kinds & _NO_CREDENTIALS:
        return "credentials in the environment", (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (of other stores what "
            "their library names); for a public bucket, FSSPEC_S3_ANON=true"
        )
    if code in _REFUSED_CREDENTIALS:
        return "credentials that the store takes", "renew them in the environment, and run again"
    if code == "NoSuchBucket":
        return "a bucket that is there", "make the bucket, or correct the URL"
    if code in _OTHER_REGION:
        return "the region of the bucket", "name it in AWS_DEFAULT_REGION"
    if code == "RequestTimeTooSkewed":
        return "the time of day", "set this machine's clock"
    if status_of(error) == 403 or code == "AccessDenied" or isinstance(error, PermissionError):
        return "a store that permits it", (
            "let these credentials list the bucket, and get, put and delete objects below the URL"
        )
    if kinds & _NOT_REACHED:
        return "a store that can be reached", (
            "look at the network, and at the endpoint in the environment (AWS_ENDPOINT_URL)"
        )
    return "a store that answers", (
        "look at the credentials and the endpoint in the environment, and run again: finished "
        "outputs stay"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _kinds(error: BaseException) -> set[str]:
    """Return the names of the classes of an error; their libraries may not be installed."""
    classes = {kind for each in _chain(error) for kind in type(each).__mro__}
    return {f"{kind.__module__}.{kind.__name__}" for kind in classes}


def _is_page(error: BaseException) -> bool:
    """Return whether an answer may be a web page, which botocore takes for an error 500; a gateway
    that is busy says so by another number."""
    return status_of(error) == 500 and any(getattr(each, "is_page", 0) for each in _chain(error))


def _secrets() -> set[str]:
    return {
        value
        for name, value in os.environ.items()
        if len(value) >= 6 and _SECRET_NAMES.search(name.upper())
    }


_CONNECTIONS = 64
"""Connections that are kept."""
_COUNTING = re.compile(r"AWS_|FSSPEC_|HOME$|.*_PROXY$", re.IGNORECASE)
"""Variables of the environment by which one client differs from another."""
_READ_BYTES = 1 << 18
_ABSENT = {"404", "NoSuchKey", "NoSuchVersion"}


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
        environment = tuple(sorted(of for of in os.environ.items() if _COUNTING.match(of[0])))
        with _locks.setdefault(os.getpid(), Lock()):  # one that a fork took over may be locked
            client = _client(os.getpid(), environment)
        try:
            answer = getattr(client, method)(Bucket=self.bucket, **arguments)
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


_locks: dict[int, Lock] = {}


@lru_cache(maxsize=8)
def _client(_process: int, _environment: tuple[tuple[str, str], ...]) -> Any:
    """Return botocore's client for a process and what its environment names now."""
    from botocore import UNSIGNED  # late: it takes 0.3 s
    from botocore.config import Config
    from botocore.session import Session
    from fsspec import config as settings

    found: dict[str, dict[str, Any]] = {}
    settings.set_conf_files(settings.conf_dir, found)
    settings.set_conf_env(found)
    options = {**found.get("s3", {}), **found.get("s3a", {})}
    of_client = {
        name: options[of]
        for of, name in {
            "endpoint_url": "endpoint_url", "use_ssl": "use_ssl", "key": "aws_access_key_id",
            "secret": "aws_secret_access_key", "token": "aws_session_token",
        }.items()
        if of in options
    }  # fmt: skip
    config = {
        "retries": {"total_max_attempts": 1}, "max_pool_connections": _CONNECTIONS,
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

    def with_added(params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
        known = model.input_shape.members
        return {name: of for name, of in added.items() if name in known} | params

    client.meta.events.register("provide-client-params.s3", with_added)
    return client

"""A file reached by http or https, through the standard library.

Not fsspec's: its reads are one request per block, so a file replaced between two of them comes
out mixed; its `info` reports a server's 503 as a missing file; it undoes a Content-Encoding
nobody asked for; and aiohttp ends any request after five minutes.
"""

import base64
import http.client
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from tokflow.errors import RawFileError
from tokflow.raw.redirects import RefusedRedirectError, open_redirecting
from tokflow.raw.remote import Body, TransientError, Validator, remote_error
from tokflow.raw.urls import safe_text, split_url

TIMEOUT_SECONDS = 60.0
"""How long a server may stay silent."""

_MAX_WAIT_SECONDS = 120.0
_NO_HEAD = {400, 403, 405, 501}
"""Answers to HEAD of servers that answer GET, as for links signed for GET alone."""
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_SUFFIXES = {"gzip": (".gz", ".tgz"), "x-gzip": (".gz", ".tgz"), "zstd": (".zst",), "br": (".br",)}


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file at an http or https URL."""

    url: str = field(repr=False)
    named_hosts: frozenset[str] = frozenset()
    """Hosts that its server may lead to, whatever their address."""

    def probe(self) -> Validator:
        """Ask by HEAD; where HEAD is refused, by a GET whose body is not read."""
        try:
            with _open(self, method="HEAD") as response:
                return _validator(response)
        except _RefusedError as error:
            if error.status not in _NO_HEAD:
                raise
        with _open(self, method="GET") as response:
            return _validator(response)

    @contextmanager
    def open_at(self, offset: int) -> Iterator[Body]:
        """Open one GET for the rest of the file, or all of it if the server cannot skip."""
        try:
            with _open(self, method="GET", offset=offset) as response:
                body = _WebBody(response, self.url)
                if body.offset in {0, offset}:
                    yield body
                    return
        except _RefusedError as error:
            if error.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or offset == 0:
                raise
        with self.open_at(0) as body_of_all:
            yield body_of_all


class _WebBody:
    def __init__(self, response: http.client.HTTPResponse, url: str) -> None:
        self.offset, self.num_bytes = _extent(response)
        self._response = response
        self._url = url
        if self.num_bytes is None and not response.chunked:
            raise remote_error(
                url,
                "neither",
                expected="a Content-Length or chunks, without which a cut download looks whole",
                remedy="download it by other means and name the local file under raw.files",
            )
        _check_encoding(response, url)

    def read(self, num_bytes: int) -> bytes:
        """Return up to `num_bytes`; empty only at the end."""
        try:
            return self._response.read(num_bytes)
        except http.client.IncompleteRead as error:
            raise TransientError("a connection that broke off") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(safe_text(error, self._url)) from None


class _RefusedError(RawFileError):
    """An answer that says no."""

    status = 0


@contextmanager
def _open(file: WebFile, *, method: str, offset: int = 0) -> Iterator[http.client.HTTPResponse]:
    url = file.url
    try:
        response = open_redirecting(url, file.named_hosts).open(
            _request(url, method, offset), timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        error.close()
        raise _refusal(url, error) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _no_answer(url, error) from None
    with response:
        if response.status not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
            raise remote_error(url, _status(response.status), remedy="name the URL of a file")
        yield response


def _request(url: str, method: str, offset: int) -> urllib.request.Request:
    parts = split_url(url)
    path = urllib.parse.quote(parts.path or "/", safe="/%:@!$&'()*+,;=~[]")
    query = urllib.parse.quote(parts.query, safe="/%:@!$&'()*+,;=~[]?")
    target = f"{parts.origin}{path}" + (f"?{query}" if query else "")
    request = urllib.request.Request(target, method=method)
    request.add_header("Accept-Encoding", "identity")
    request.add_header("User-Agent", "tokflow")
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    if parts.userinfo:
        userinfo = urllib.parse.unquote(parts.userinfo).encode()
        authorization = f"Basic {base64.b64encode(userinfo).decode()}"
        request.add_unredirected_header("Authorization", authorization)
    return request


def _refusal(url: str, error: urllib.error.HTTPError) -> Exception:
    if error.code in _TRANSIENT:
        asked = error.headers.get("Retry-After", "")
        wait = min(float(asked), _MAX_WAIT_SECONDS) if asked.isascii() and asked.isdigit() else 0.0
        return TransientError(_status(error.code), wait_seconds=wait)
    remedy = "correct the URL under raw.files"
    if error.code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        remedy = "give credentials that may read it, or correct the URL under raw.files"
    refused = _RefusedError(**remote_error(url, _status(error.code), remedy=remedy).fields())
    refused.status = error.code
    return refused


def _no_answer(url: str, error: Exception) -> Exception:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, RefusedRedirectError):
        remedy = "if you trust where it leads to, name that URL under raw.files"
        return remote_error(url, reason.found, expected=reason.expected, remedy=remedy)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return remote_error(
            url,
            f"a certificate that is not trusted ({reason.verify_message})",
            remedy="correct the URL, or set SSL_CERT_FILE to the certificates to trust",
        )
    if isinstance(reason, (ValueError, http.client.InvalidURL)):
        return remote_error(url, safe_text(reason, url), remedy="correct the URL under raw.files")
    text = safe_text(reason, url) if isinstance(reason, BaseException) else "no answer"
    return TransientError(text)


def _status(code: int) -> str:
    try:
        return f"HTTP status {code} ({HTTPStatus(code).phrase})"
    except ValueError:
        return f"HTTP status {code}"


def _validator(response: http.client.HTTPResponse) -> Validator:
    return Validator(
        etag=response.headers.get("ETag"),
        last_modified=response.headers.get("Last-Modified"),
        num_bytes=_extent(response)[1],
    )


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return where the body begins in the file, and the size of the whole file if it is told."""
    length = response.headers.get("Content-Length", "")
    num_bytes = int(length) if length.isascii() and length.isdigit() else None
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0, num_bytes
    told = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if told is None:
        return -1, None
    if told[2] != "*":
        return int(told[1]), int(told[2])
    return int(told[1]), None if num_bytes is None else int(told[1]) + num_bytes


def _check_encoding(response: http.client.HTTPResponse, url: str) -> None:
    """Refuse bytes that a server compressed though asked not to; a file named .gz is meant so."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    path = split_url(url).path.lower()
    if encoding in {"", "identity"} or path.endswith(_SUFFIXES.get(encoding, ())):
        return
    raise remote_error(
        url,
        f"the content encoded as {encoding!r}",
        expected="the bytes of the file, as asked for with `Accept-Encoding: identity`",
        remedy="download it with `curl --compressed` and name the local file under raw.files",
    )

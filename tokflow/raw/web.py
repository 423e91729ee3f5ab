"""A file reached by http or https, through urllib3.

Not fsspec's: its reads are one request per block, so a file replaced between two of them comes
out mixed; its `info` reports a server's 503 as a missing file; it undoes a Content-Encoding
nobody asked for; and aiohttp ends any request after five minutes. urllib3 itself neither tries
again nor follows redirects: `fetch` does the one where a download broke off, and `_answer` the
other with a look at each: a server may lead to any URL, such as that of a database on this machine
or of a cloud's credentials, and only the hosts that raw.files names may have any address.
"""

import base64
import ipaddress
import logging
import re
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.client import IncompleteRead, responses

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, InvalidHeader, NewConnectionError
from urllib3.util import Url, make_headers, parse_url

from tokflow.formatting import redact
from tokflow.raw.remote_version import Body, TransientError, Validator, remote_error
from tokflow.store.urls import safe_text, split_url

TIMEOUT_SECONDS = 60.0
"""The longest that a server may stay silent."""

_MAX_REDIRECTS = 10
_MAX_WAIT_SECONDS = 120.0
_NO_HEAD = {400, 403, 405, 501}
"""Answers to HEAD of servers that answer GET, as for links signed for GET alone."""
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that end in the IPv4 address which a gateway makes of them."""
_SUFFIXES = {"gzip": (".gz", ".tgz"), "x-gzip": (".gz", ".tgz"), "zstd": (".zst",), "br": (".br",)}


class _RefusedRedirectError(Exception):
    """A redirect that is not followed; its arguments are what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file at an http or https URL."""

    url: str = field(repr=False)
    named_hosts: frozenset[str] = frozenset()
    """Hosts that its server may lead to, whatever their address."""
    authorization: str | None = field(default=None, repr=False)
    """The header that is sent to the host of `url`, and to no other."""

    def probe(self) -> Validator:
        """Ask by HEAD; where HEAD is refused, by a GET whose body is not read."""
        with closing(_answer(self, "HEAD")) as response:
            if response.status not in _NO_HEAD:
                return _validator(response, self.url)
        with closing(_answer(self, "GET")) as response:
            return _validator(response, self.url)

    @contextmanager
    def open_at(self, offset: int, stop: int | None = None) -> Iterator[Body]:
        """Open one GET for the rest of the file or what is before `stop`, or all of it if the
        server cannot skip."""
        with closing(_answer(self, "GET", offset, stop)) as response:
            if not (offset and response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
                body = _body(response, self.url)
                if body.offset in {0, offset}:
                    yield body
                    return
        with closing(_answer(self, "GET")) as response:
            yield _body(response, self.url)


def _answer(
    file: WebFile, method: str, offset: int = 0, stop: int | None = None
) -> urllib3.BaseHTTPResponse:
    """Return the answer at the end of all redirects, whatever its status.

    The password, or token, is sent to the scheme, host and port that the URL names, and not even
    to them once a redirect has led to another host.
    """
    parts = split_url(file.url)
    query = f"?{parts.query}" if parts.query else ""
    target = parse_url(f"{parts.origin}{parts.path}{query}")
    headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "tokflow"}
    if offset or stop is not None:
        headers["Range"] = f"bytes={offset}-{'' if stop is None else stop - 1}"
    if parts.userinfo:
        userinfo = urllib.parse.unquote(parts.userinfo).encode()
        headers["Authorization"] = f"Basic {base64.b64encode(userinfo).decode()}"
    if file.authorization is not None:
        headers["Authorization"] = file.authorization
    named_hosts = file.named_hosts | {_host(target)}
    try:
        for _ in range(1 + _MAX_REDIRECTS):
            response = _send(method, target, headers, named_hosts)
            location = urllib.parse.urljoin(target.url, response.get_redirect_location() or "")
            if location == target.url or not location.lower().startswith(("http://", "https://")):
                return response
            response.close()
            if target.scheme == "https" and not location.lower().startswith("https:"):
                raise _RefusedRedirectError(
                    "no redirect from https to http, which anyone on the way can change",
                    f"one to {redact(location)}",
                )
            before, target = target, parse_url(location)._replace(auth=None)
            if (target.scheme, target.netloc) != (before.scheme, before.netloc):
                headers.pop("Authorization", None)
    except (_RefusedRedirectError, HTTPError, OSError, ValueError) as error:
        raise _no_answer(file.url, _reason(error)) from None
    raise remote_error(file.url, f"more than {_MAX_REDIRECTS} redirects, one after another")


def _public_addresses(host: str) -> list[str]:
    """Return the addresses of a host to which a server may lead though raw.files does not name it.

    Raises: _RefusedRedirectError if any is a loopback, link-local, private or another address that
    is not public; OSError if this machine knows no address of it.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    for address in addresses:
        if not _is_public(address):
            raise _RefusedRedirectError(
                "redirects to public addresses, or to hosts that raw.files names",
                f"one to {host}" + (f", which is {address}" if address != host else ""),
            )
    return addresses


def _is_public(text: str) -> bool:
    """Return whether an address is one of the internet, also as an IPv4 address within IPv6."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        in_gateway = ipaddress.IPv4Address(address.packed[-4:]) if address in _NAT64 else None
        if (inner := in_gateway or address.ipv4_mapped or address.sixtofour) is not None:
            return _is_public(str(inner))
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast


def _send(
    method: str, target: Url, headers: dict[str, str], named_hosts: frozenset[str]
) -> urllib3.BaseHTTPResponse:
    """Send one request: to a host that is named, or else to the very address that was looked at.

    A proxy connects by itself: what it is asked for is looked at here, if this machine knows the
    name at all.
    """
    host, proxy = _host(target), None
    if (named := urllib.request.getproxies().get(str(target.scheme))) and not (
        urllib.request.proxy_bypass(str(target.netloc))
    ):
        of = parse_url(named if "://" in named else f"http://{named}")
        auth = urllib.parse.unquote(of.auth or "")
        sent = make_headers(proxy_basic_auth=auth) if auth else None
        proxy = urllib3.ProxyManager(of._replace(auth=None).url, proxy_headers=sent)
    addresses = [host]
    if host not in named_hosts:
        try:
            addresses = _public_addresses(host)
        except socket.gaierror:
            if proxy is None:
                raise
    pools = proxy or urllib3.PoolManager(server_hostname=host)

    def ask(address: str) -> urllib3.BaseHTTPResponse:
        name = f"[{address}]" if ":" in address else address
        return pools.request(
            method,
            target.url if proxy else target._replace(host=name).url,
            headers={**headers, "Host": str(target.netloc)},
            timeout=TIMEOUT_SECONDS,
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
            enforce_content_length=False,  # `fetch` compares sizes, and reports both
        )

    for name in ("urllib3.connection", "urllib3.connectionpool"):  # a query may be a key
        logging.getLogger(name).addFilter(without_queries)
    for address in addresses[:-1]:
        with suppress(NewConnectionError, ConnectTimeoutError):
            return ask(address)
    return ask(addresses[-1])


def _host(target: Url) -> str:
    return str(target.host).strip("[]")


def without_queries(record: logging.LogRecord) -> bool:
    """Let a line of a log be written, without the queries of URLs in it."""
    record.msg, record.args = re.sub(r"\?\S*", "", record.getMessage()), ()
    return True


def _reason(error: Exception) -> Exception:
    """Return the innermost of the errors that urllib3 wraps in one another."""
    inner = [error.__cause__, *error.args]
    return next((_reason(cause) for cause in inner if isinstance(cause, Exception)), error)


def _no_answer(url: str, reason: Exception) -> Exception:
    if isinstance(reason, _RefusedRedirectError):
        remedy = "if you trust where it leads to, name that URL under raw.files"
        expected, found = reason.args
        return remote_error(url, found, expected=expected, remedy=remedy)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return remote_error(
            url,
            f"a certificate that is not trusted ({reason.verify_message})",
            remedy="correct the URL, or set SSL_CERT_FILE to the certificates to trust",
        )
    if isinstance(reason, ValueError):
        return remote_error(url, safe_text(reason, url))
    return TransientError(safe_text(reason, url))


def _validator(response: urllib3.BaseHTTPResponse, url: str) -> Validator:
    """Return which version an answer is of.

    Raises: TransientError or RawFileError for an answer without the file.
    """
    status = response.status
    if status in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
        return Validator(
            etag=response.headers.get("ETag"),
            last_modified=response.headers.get("Last-Modified"),
            num_bytes=_extent(response)[2],
        )
    phrase = responses.get(status)
    found = f"HTTP status {status}" + (f" ({phrase})" if phrase else "")
    if status in _TRANSIENT:
        wait_seconds = 0.0
        with suppress(InvalidHeader):  # for how long the server asks to be left alone
            wait_seconds = urllib3.Retry().get_retry_after(response) or 0.0
        raise TransientError(found, wait_seconds=min(wait_seconds, _MAX_WAIT_SECONDS))
    is_refused = status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    remedy = "give credentials that may read it, or " * is_refused
    raise remote_error(url, found, remedy=f"{remedy}correct the URL under raw.files")


def _body(response: urllib3.BaseHTTPResponse, url: str) -> Body:
    validator = _validator(response, url)
    offset, stop, num_bytes = _extent(response)
    if num_bytes is None and not response.chunked:
        raise remote_error(
            url,
            "neither",
            expected="a Content-Length or chunks, without which a cut download looks whole",
            remedy="download it by other means and name the local file under raw.files",
        )
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    is_meant = split_url(url).path.lower().endswith(_SUFFIXES.get(encoding, ()))
    if encoding not in {"", "identity"} and not is_meant:  # a file named .gz is
        raise remote_error(
            url,
            f"the content encoded as {encoding!r}",
            expected="the bytes of the file, as asked for with `Accept-Encoding: identity`",
            remedy="download it with `curl --compressed` and name the local file under raw.files",
        )

    def read(num_bytes: int) -> bytes:
        try:
            return response.read(num_bytes)
        except (HTTPError, OSError) as error:
            reason = _reason(error)
            is_cut = isinstance(reason, IncompleteRead)
            found = "a connection that broke off" if is_cut else safe_text(reason, url)
            raise TransientError(found) from None

    if response.headers.get("Content-Range", "").endswith("/*"):
        validator = replace(validator, num_bytes=None)
    is_told = validator.etag is not None or validator.last_modified is not None
    return Body(offset, num_bytes, read, validator if is_told else None, stop)


def _extent(response: urllib3.BaseHTTPResponse) -> tuple[int, int | None, int | None]:
    """Return where the body begins in the file, where it stops if it is a range, and the size of
    the whole file, where they are known."""
    length = response.headers.get("Content-Length", "")
    num_bytes = int(length) if length.isascii() and length.isdigit() else None
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0, None, num_bytes
    range_ = response.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", range_)
    if found is None:
        return -1, None, None
    start, last = int(found[1]), int(found[2])
    if found[3] != "*":
        return start, last + 1, int(found[3])
    return start, last + 1, None if num_bytes is None else start + num_bytes

"""Redirects of an http source: followed, but never into the network of who fetches.

A server may answer with any URL, such as that of a database on this machine or of a cloud's
credentials. The hosts that raw.files names may have any address.
"""

import http.client
import ipaddress
import socket
import urllib.parse
import urllib.request
from contextlib import suppress
from typing import IO

from tokflow.raw.urls import redact, split_url

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that end in the IPv4 address which a gateway makes of them."""


class RefusedRedirectError(OSError):
    """A redirect that is not followed."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(found)
        self.expected, self.found = expected, found


def open_redirecting(
    url: str, named_hosts: frozenset[str] = frozenset()
) -> urllib.request.OpenerDirector:
    """Return what opens requests for `url`, and follows where it leads.

    Its `open` raises RefusedRedirectError, or URLError with it as reason, for a redirect from
    https to http and for one to a host which is neither its own nor one of `named_hosts`, and is
    at a loopback, link-local, private or any other address which is not public.
    """
    hosts = named_hosts | {str(urllib.parse.urlsplit(split_url(url).origin).hostname)}
    return urllib.request.build_opener(_Redirects, _Http(hosts), _Https(hosts))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow to http(s) alone, with the same method, and with the password only to its own host."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request to send next, or None for none."""
        if not newurl.lower().startswith(("http://", "https://")):
            return None
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None:
            if _scheme(req) == "https" and _scheme(new) == "http":
                fp.close()
                raise RefusedRedirectError(
                    expected="no redirect from https to http, which anyone on the way can change",
                    found=f"one to {redact(newurl)}",
                )
            new.method = req.get_method()
            authorization = req.unredirected_hdrs.get("Authorization")
            if authorization and (new.type, new.host) == (req.type, req.host):
                new.add_unredirected_header("Authorization", authorization)
        return new


class _Http(urllib.request.HTTPHandler):
    def __init__(self, named_hosts: frozenset[str]) -> None:
        super().__init__()
        self._named_hosts = named_hosts

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request."""
        is_checked = _needs_check(req, self._named_hosts)
        return self.do_open(_PublicHttp if is_checked else http.client.HTTPConnection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, named_hosts: frozenset[str]) -> None:
        super().__init__()
        self._named_hosts = named_hosts

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request."""
        is_checked = _needs_check(req, self._named_hosts)
        return self.do_open(_PublicHttps if is_checked else http.client.HTTPSConnection, req)


class _PublicHttp(http.client.HTTPConnection):
    """A connection to the very address that was looked at, whatever its name leads to later."""

    def connect(self) -> None:
        """Connect to the first address that answers."""
        addresses = _public_addresses(self.host, self.port)
        for number, address in enumerate(addresses, start=1):
            try:
                self.sock = socket.create_connection((address, self.port), self.timeout)
                return
            except OSError:
                if number == len(addresses):
                    raise


class _PublicHttps(http.client.HTTPSConnection, _PublicHttp):
    """The same with TLS: HTTPSConnection connects as the next class in this line does."""


def _needs_check(req: urllib.request.Request, named_hosts: frozenset[str]) -> bool:
    """Say whether the address of a request must be looked at when it is connected to.

    A proxy connects by itself: what it is asked for is looked at here, if this machine knows the
    name at all.
    """
    target = urllib.parse.urlsplit(req.full_url)
    if target.hostname in named_hosts:
        return False
    if req.host == target.netloc:
        return True
    with suppress(socket.gaierror):
        _public_addresses(str(target.hostname), target.port or 0)
    return False


def _scheme(req: urllib.request.Request) -> str:
    return urllib.parse.urlsplit(req.full_url).scheme  # `type` is the proxy's where there is one


def _public_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host, which must all be public.

    Raises: RefusedRedirectError.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(sockaddr[0]) for *_, sockaddr in found]
    for address in addresses:
        if not _is_public(address):
            raise RefusedRedirectError(
                expected="redirects to public addresses alone, but for hosts that raw.files names",
                found=f"one to {host}" + (f", which is {address}" if address != host else ""),
            )
    return addresses


def _is_public(text: str) -> bool:
    """Say whether an address is one of the internet, also as an IPv4 address within IPv6."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(address.packed[-4:])
        if inner is not None:
            return _is_public(str(inner))
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast

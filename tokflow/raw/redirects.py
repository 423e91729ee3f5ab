"""Redirects of an http source: followed, but never into the network of who fetches.

A server may answer with any URL, such as that of a database on this machine or of a cloud's
credentials. The hosts that raw.files names may have any address.
"""

import ipaddress
import socket

from tokflow.raw.urls import redact

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that end in the IPv4 address which a gateway makes of them."""


class RefusedRedirectError(Exception):
    """A redirect that is not followed."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(found)
        self.expected, self.found = expected, found


def check_scheme(url: str, next_url: str) -> None:
    """Raise RefusedRedirectError for a redirect from https to http."""
    if url.startswith("https:") and not next_url.lower().startswith("https:"):
        raise RefusedRedirectError(
            expected="no redirect from https to http, which anyone on the way can change",
            found=f"one to {redact(next_url)}",
        )


def public_addresses(host: str) -> list[str]:
    """Return the addresses of a host to which a server may lead though raw.files does not name it.

    Raises: RefusedRedirectError if any is a loopback, link-local, private or another address that
    is not public; OSError if this machine knows no address of it.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    for address in addresses:
        if not _is_public(address):
            raise RefusedRedirectError(
                expected="redirects to public addresses alone, but for hosts that raw.files names",
                found=f"one to {host}" + (f", which is {address}" if address != host else ""),
            )
    return addresses


def _is_public(text: str) -> bool:
    """Return whether an address is one of the internet, also as an IPv4 address within IPv6."""
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

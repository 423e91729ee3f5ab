"""Dagster's web server for the pages it serves itself: `python -m tokflow.components.webserver`.

Dagster's own answers whoever can reach it, and each page that is open in a browser of this machine
can: one picture of `/graphql?query=mutation...` starts a run.
"""

import ipaddress
import re
import socket
import sys
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

ANY_ADDRESS = "any address"
"""Name of a server that stands for every IP address, since no page can redirect one."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/@?#\s]+)(:[0-9]+)?", re.IGNORECASE)


def main() -> None:
    """Become the web server. Arguments: the `--host` of the user, then those of Dagster's own."""
    from dagster_webserver.cli import main as serve
    from dagster_webserver.webserver import DagsterWebserver

    names = names_of(sys.argv.pop(1))
    of_dagster = DagsterWebserver.build_middleware

    def build_middleware(self: Any) -> list[Middleware]:
        return [Middleware(OwnPages, names=names), *of_dagster(self)]

    # Its command builds the application from this class. `tokflow ui` asks whether it is guarded.
    DagsterWebserver.build_middleware = build_middleware  # type: ignore[method-assign]
    serve()  # type: ignore[no-untyped-call]


def names_of(host: str) -> frozenset[str]:
    """Return the names, beside those of loopback, of a server that listens on `host`."""
    if host in ("0.0.0.0", "::"):
        return frozenset({ANY_ADDRESS, socket.gethostname().lower()})
    return frozenset({host.lower()})


def is_loopback(host: str) -> bool:
    """Return whether an address leads to this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class OwnPages:
    """Answers 403 to what no page of this server, and no program that names it rightly, asks for.

    Those have a Host of this server (a page of another name that leads to this address has not),
    and its Origin if any. The port may be any, as through a tunnel. Nothing is done by a URL alone:
    a link or a picture in another page has no Origin.
    """

    def __init__(self, app: ASGIApp, *, names: Collection[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let Dagster answer."""
        is_socket = scope["type"] == "websocket"
        if scope["type"] != "http" and not is_socket:
            await self._app(scope, receive, send)
        elif (why := refused(scope, self._names)) is None:
            await self._app(scope, receive, _unframed(send))
        elif is_socket:  # closed before it is open, so that the answer is a 403
            await WebSocketClose(code=1008)(scope, receive, send)
        else:
            await PlainTextResponse(f"{why}\n", status_code=403)(scope, receive, send)


def refused(scope: Scope, names: Collection[str]) -> str | None:
    """Return why a request is refused and what to do, if it is."""
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    host = hosts[0].lower() if len(hosts) == 1 else ""
    if not _is_own(host, names):
        return (
            f"This web UI is not served as {', '.join(hosts) or 'a server without a name'}: open "
            "it as 127.0.0.1 or localhost, or as the name given by `tokflow ui --host NAME "
            "--expose-without-login`."
        )
    for origin in headers.getlist("origin"):
        if urlsplit(origin).netloc.lower() != host:
            return f"A page of {origin} may not use this web UI: only those of http://{host} may."
    is_reading = scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD")
    if not is_reading and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return f"A page of another site may not use this web UI: only those of http://{host} may."
    # Dagster gives a reader of pages its editor, with the query of the URL in it and not executed.
    is_page = is_reading and "text/html" in headers.get("accept", "")
    query = parse_qs(scope["query_string"].decode("latin-1"))
    if scope["path"].endswith("/graphql") and not is_page and "query" in query:
        return "A query in a URL is not executed: send it by POST, as JSON, to /graphql."
    return None


def _is_own(host: str, names: Collection[str]) -> bool:
    match = _HOST.fullmatch(host)
    name = match[1].strip("[]") if match else ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name in names
    return is_loopback(name) or name in names or ANY_ADDRESS in names


def _unframed(send: Send) -> Send:
    """Return `send` that keeps other sites from framing this page (clickjacking)."""

    async def send_unframed(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
        await send(message)

    return send_unframed


if __name__ == "__main__":
    main()

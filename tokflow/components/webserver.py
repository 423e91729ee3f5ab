"""Dagster's web server for the pages it serves itself: `python -m tokflow.components.webserver`.

Dagster's own answers whoever can reach it, and each page that is open in a browser of this machine
can: one picture of `/graphql?query=mutation...` starts a run.

Beside Dagster's pages it serves those of datasets: the report with its pictures, and a viewer of
each export. Only names of declared datasets and of their exports lead to them: nothing of a URL
becomes a path. Their texts come from anybody, so browsers show them as pages of no site, which can
use neither Dagster nor anything else.
"""

import ipaddress
import re
import socket
import sys
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from tokflow.components.markdown import PREFIX
from tokflow.errors import TokflowError, message_of
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.store.latest import LATEST
from tokflow.store.stored_outputs import output_in
from tokflow.views.report_page import REPORT_PATH

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
        return [Middleware(OwnPages, names=names), Middleware(DatasetPages), *of_dagster(self)]

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


POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""Content security policy: a page can show itself and run its own script, and nothing else."""


class DatasetPages:
    """Answers what begins with PREFIX, and lets Dagster answer the rest."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let Dagster answer."""
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(f"{PREFIX}/"):
            await self._app(scope, receive, send)
            return
        site = Headers(scope=scope).get("sec-fetch-site", "none")
        if scope["method"] not in ("GET", "HEAD") or site not in ("none", "same-origin"):
            response: Response = PlainTextResponse("Open this page by its link.\n", 403)
        else:
            response = await run_in_threadpool(_answer, scope["path"])
        await response(scope, receive, send)


def _answer(path: str) -> Response:
    try:
        page = _page(path.removeprefix(f"{PREFIX}/").split("/"))
    except (TokflowError, OSError) as error:
        return PlainTextResponse(f"{message_of(error, where=path)}\n", 404)
    if page is None:
        return PlainTextResponse("No dataset of this project has such a page.\n", 404)
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    media_type = "image/svg+xml" if path.endswith(".svg") else "text/html"
    return Response(page, media_type=media_type, headers=headers)


def _page(names: list[str]) -> bytes | None:
    """Return the page at a path, given as its names; None where there is none."""
    declaration = list_declared().get(names[0])
    if declaration is None:
        return None
    match names[1:]:
        case ["report"]:
            return _report(load_declared(declaration))
        case ["report", name]:
            return _picture(load_declared(declaration), name)
        case ["exports", name]:
            return _viewer(load_declared(declaration), name)
    return None


def _report(dataset: Dataset) -> bytes:
    path = dataset.folder / REPORT_PATH
    if path.is_file():
        return path.read_bytes()
    said = f"No report yet: materialize {dataset.name}/report, or `tokflow report {dataset.name}`."
    return said.encode()


def _picture(dataset: Dataset, name: str) -> bytes | None:
    drawn = {of.name: of for of in (dataset.folder / REPORT_PATH).parent.glob("*.svg")}
    return drawn[name].read_bytes() if name in drawn else None


def _viewer(dataset: Dataset, export: str) -> bytes | None:
    from tokflow.views.viewer_page import make_viewer

    if export not in {of.name for of in dataset.exports}:
        return None
    folder = dataset.folder / "exports" / export
    dataset.store.refresh(folder)
    return make_viewer(output_in(dataset.store, folder / LATEST))


if __name__ == "__main__":
    main()

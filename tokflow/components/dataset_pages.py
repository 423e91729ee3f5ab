"""Pages of datasets that `tokflow ui` serves beside Dagster's: the report and its pictures, and a
viewer of each export.

A URL names a dataset that the project declares, or an export of it; no part of a URL becomes a
path. Their texts can come from anybody, so browsers show them as pages without an origin, which can
use neither Dagster nor anything else.
"""

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tokflow.components.markdown import PREFIX
from tokflow.errors import TokflowError, message_of
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.store.latest import LATEST
from tokflow.store.stored_outputs import output_in
from tokflow.views.report_page import REPORT_PATH

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

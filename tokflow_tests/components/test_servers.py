"""Code servers that are asked to load their code anew."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import grpc
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from tokflow.components.build_job import _build_selected, asset_job, build_asset
from tokflow.components.code_server import API, reload_code
from tokflow.components.webserver import OwnPages, names_of
from tokflow_tests.dagster_case import QUIET, Case


@contextmanager
def code_server(address: str, *, loads: bool) -> Iterator[None]:
    """Serve what Dagster's code servers answer: another id after they loaded their code anew."""
    ids = ["1"]

    def answer(method: str) -> Any:
        def handle(request: bytes, context: object) -> bytes:
            if method == "ReloadCode" and loads:
                ids.append("2")
            return ids[-1].encode()

        return grpc.unary_unary_rpc_method_handler(handle)

    methods = {name: answer(name) for name in ("GetServerId", "ReloadCode")}
    server = grpc.server(ThreadPoolExecutor(1))
    name = API.removeprefix("/")
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods)])
    server.add_insecure_port(address)
    server.start()
    yield
    server.stop(None)


def run_of(**server: object) -> Any:
    """Return what a run says of its code server."""
    location = SimpleNamespace(code_location_origin=SimpleNamespace(**server))
    return SimpleNamespace(remote_job_origin=SimpleNamespace(repository_origin=location))


@pytest.mark.parametrize("loads", [True, False])
def test_a_server_is_reloaded_where_it_has_another_id_afterwards(loads: bool, tmp_path: Path):
    socket = tmp_path / "code"

    with code_server(f"unix:{socket}", loads=loads):
        assert reload_code(run_of(socket=str(socket), host="localhost", port=None)) is loads


def test_a_run_without_a_server_that_answers_reloads_nothing(tmp_path: Path):
    assert not reload_code(run_of(socket=str(tmp_path / "gone"), host="localhost", port=None))
    assert not reload_code(run_of(loadable_target_origin="of a web server alone"))
    assert not reload_code(dg.DagsterRun("of_this_process"))


def test_a_run_of_an_edited_yaml_says_what_to_press_where_nothing_can_be_reloaded(case: Case):
    loaded = case.dataset
    case.attributes["owners"] = ["team:other"]

    said = []
    for dataset in (loaded, case.dataset):
        assets = build_asset(loaded, partial(_build_selected, dataset))
        job = asset_job(loaded, assets)
        run = job.execute_in_process(QUIET, instance=case.instance)
        logs = case.instance.all_logs(run.run_id)
        said.append([of.user_message for of in logs if "press Reload" in of.user_message])

    assert said[0] == []
    [warning] = said[1]
    assert warning.startswith("small was edited after its code location was loaded: pages show")


HERE = "http://127.0.0.1:3000"
MUTATION = "mutation{launchRun}"


async def _answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse("done")


async def _open(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


def client(host: str = "127.0.0.1") -> TestClient:
    """Return a client of a server that does whatever it is asked, behind the guard."""
    routes = [
        WebSocketRoute("/graphql", _open),
        Route("/{path:path}", _answer, methods=["GET", "POST", "DELETE"]),
    ]
    app = OwnPages(Starlette(routes=routes), names=names_of(host))
    return TestClient(app, base_url=HERE)


def status(
    method: str, path: str, headers: Mapping[str, str], host: str = "127.0.0.1"
) -> tuple[int, str]:
    answer = client(host).request(method, path, headers=dict(headers))
    return answer.status_code, answer.text


def opens(headers: Mapping[str, str]) -> bool:
    """Return whether a web socket opens."""
    try:
        with client().websocket_connect("ws://127.0.0.1:3000/graphql", headers=dict(headers)):
            return True
    except WebSocketDisconnect:
        return False


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:3000", "127.9.8.7", "localhost:3000", "LOCALHOST:8080", "[::1]:3000", "[::1]"],
)
def test_a_page_of_this_machine_is_answered_also_through_a_tunnel(host: str):
    own = {"Host": host, "Origin": f"http://{host.lower()}"}

    assert status("POST", "/graphql", own) == (200, "done")
    assert status("GET", "/runs", {"Host": host}) == (200, "done")
    assert opens(own)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:3000",
        "localhost@evil.example",
        "192.168.1.5:3000",
        "[::2]:3000",
        "",
    ],
)
def test_another_name_that_leads_here_is_refused(host: str):
    for method, path in [("GET", "/"), ("POST", "/graphql"), ("POST", "/report_asset_check/a")]:
        code, said = status(method, path, {"Host": host})

        assert code == 403
        assert "open it as 127.0.0.1 or localhost" in said
    assert not opens({"Host": host, "Origin": f"http://{host}"})


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:3000",
        "http://127.0.0.1:3001",
        "https://127.0.0.1:3000.evil.example",
        "null",
        "",
    ],
)
def test_a_page_of_another_origin_is_refused(origin: str):
    foreign = {"Origin": origin}

    for path in ("/graphql", "/report_asset_materialization/a", "/report_asset_observation/a"):
        code, said = status("POST", path, foreign)
        assert code == 403
        assert f"A page of {origin} may not use this web UI" in said
    assert not opens(foreign)


def test_a_page_of_another_site_that_hides_its_origin_can_only_be_followed():
    for site in ("cross-site", "same-site"):
        assert status("POST", "/graphql", {"Sec-Fetch-Site": site})[0] == 403
        assert status("GET", "/runs", {"Sec-Fetch-Site": site})[0] == 200
    for site in ("same-origin", "none"):
        assert status("POST", "/graphql", {"Sec-Fetch-Site": site})[0] == 200


def test_no_url_alone_does_anything():
    url = f"/graphql?query={MUTATION}"

    assert status("GET", url, {})[0] == 403
    assert status("GET", url, {"Accept": "image/*"})[0] == 403
    assert status("POST", url, {"Accept": "text/html"})[0] == 403  # Dagster would execute it
    # A reader gets the editor, as for any address typed or followed.
    assert status("GET", url, {"Accept": "text/html"})[0] == 200


def test_another_address_is_answered_where_the_user_named_it():
    assert status("GET", "/", {"Host": "Node7.example:3000"}, host="node7.example")[0] == 200
    assert status("GET", "/", {"Host": "evil.example"}, host="node7.example")[0] == 403
    # No page can make an address, unlike a name, lead elsewhere.
    assert status("GET", "/", {"Host": "192.168.1.5:3000"}, host="0.0.0.0")[0] == 200
    assert status("GET", "/", {"Host": "[fd00::5]:3000"}, host="::")[0] == 200
    assert status("GET", "/", {"Host": "evil.example"}, host="0.0.0.0")[0] == 403


def test_no_page_of_another_site_shows_this_one():
    assert client().get("/").headers["X-Frame-Options"] == "SAMEORIGIN"

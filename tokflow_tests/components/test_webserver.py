"""Requests that the web server of `tokflow ui` answers."""

from collections.abc import Mapping

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from tokflow.components.webserver import OwnPages, names_of

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

"""Requests that the web server of `tokflow ui` answers, and the pages of datasets that it has."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from tokflow.components.markdown import report_path, viewer_path
from tokflow.components.webserver import DatasetPages, OwnPages, names_of
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.pipeline.run import build_dataset
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.projects import attributes, declare_in, make_project

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
        "evil.example:3000",
        "localhost.evil.example",
        "127.0.0.1.evil.example:3000",
        "localhost@evil.example",
        "evil.example/localhost",
        "192.168.1.5:3000",
        "0.0.0.0:3000",
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
        "http://127.0.0.1",
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


async def _dagster(request: Request) -> PlainTextResponse:
    return PlainTextResponse("of Dagster")


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of a server whose project has the dataset `mine`."""
    project = make_project(tmp_path / "project")
    (project / "data").mkdir()
    (project / "data/a.txt").write_text("a text</script><script>alert(1)</script>")
    (project / "secret/report").mkdir(parents=True)
    (project / "secret/report/report.html").write_text("secret")
    (project / "secret/report/secret.svg").write_text("secret")
    declare_in(project, "mine", attributes("mine", exports=["bin"]))
    monkeypatch.chdir(project)
    app = Starlette(routes=[Route("/{path:path}", _dagster)])
    return TestClient(DatasetPages(app), base_url="http://127.0.0.1:3000")


def test_the_report_and_the_viewer_of_a_declared_dataset_are_served(pages: TestClient):
    dataset = load_declared(list_declared()["mine"])
    build_dataset(dataset)
    (dataset.folder / "report").mkdir()
    (dataset.folder / "report/report.html").write_text("<p>a report</p>")
    (dataset.folder / "report/shares.svg").write_text("<svg/>")

    report = pages.get(report_path("mine"))
    viewer = pages.get(viewer_path("mine", "bin"))
    picture = pages.get(f"{report_path('mine')}/shares.svg")

    assert (picture.status_code, picture.text) == (200, "<svg/>")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert (report.status_code, report.text) == (200, "<p>a report</p>")
    assert viewer.status_code == 200
    assert "<script>alert" not in viewer.text
    for page in (report, viewer):
        assert page.headers["content-type"].startswith("text/html")
        # Of no site: its scripts, if a text could bring one, cannot ask Dagster for anything.
        assert page.headers["content-security-policy"].startswith(
            "sandbox allow-scripts; default-src 'none'"
        )


def test_the_viewer_knows_where_a_store_at_a_url_begins(
    pages: TestClient, object_store: ObjectStore
):
    store = f"{object_store.url}/store"
    declare_in(Path.cwd(), "mine", attributes("mine", exports=["bin"], store=store))
    build_dataset(load_declared(list_declared()["mine"]))

    with object_store.counted() as count:
        viewer = pages.get(viewer_path("mine", "bin"))

    assert viewer.status_code == 200
    assert count == {"LIST": 4}  # of the export and of what it is made of


def test_a_report_that_is_not_made_yet_says_how(pages: TestClient):
    assert "tokflow report mine" in pages.get(report_path("mine")).text


@pytest.mark.parametrize(
    "path",
    [
        "/tokflow",
        "/tokflow/",
        "/tokflow/other/report",
        "/tokflow/mine",
        "/tokflow/mine/report/more",
        "/tokflow/mine/report/other.svg",
        "/tokflow/mine/report/..%2f..%2f..%2f..%2fsecret%2freport%2fsecret.svg",
        "/tokflow/mine/exports/parquet",
        "/tokflow/mine/exports/%2e%2e",
        "/tokflow/mine/exports/bin%2f..%2f..",
        "/tokflow/%2e%2e%2f%2e%2e%2fsecret/report",
        "/tokflow/..%2fsecret/report",
    ],
)
def test_nothing_of_a_url_becomes_a_path(pages: TestClient, path: str):
    answer = pages.get(path)

    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_an_export_that_is_not_built_is_an_error_that_names_it(pages: TestClient):
    answer = pages.get(viewer_path("mine", "bin"))

    assert answer.status_code == 404
    assert "bin" in answer.text


def test_a_page_of_another_site_cannot_make_this_one_work(pages: TestClient):
    path = report_path("mine")

    for site in ("cross-site", "same-site"):
        assert pages.get(path, headers={"Sec-Fetch-Site": site}).status_code == 403
    assert pages.post(path).status_code == 403
    assert pages.get(path, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_all_else_is_of_dagster(pages: TestClient):
    assert pages.get("/tokflows/mine/report").text == "of Dagster"
    assert pages.get("/assets/mine/report").text == "of Dagster"

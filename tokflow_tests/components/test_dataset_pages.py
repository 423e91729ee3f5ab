"""Claims about the pages of datasets that `tokflow ui` serves."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tokflow.components.dataset_pages import DatasetPages
from tokflow.components.markdown import report_path, viewer_path
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.pipeline.run import build_dataset
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.projects import attributes, declare_in, make_project


async def _dagster(request: Request) -> PlainTextResponse:
    return PlainTextResponse("of Dagster")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
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


def test_the_report_and_the_viewer_of_a_declared_dataset_are_served(client: TestClient):
    dataset = load_declared(list_declared()["mine"])
    build_dataset(dataset)
    (dataset.folder / "report").mkdir()
    (dataset.folder / "report/report.html").write_text("<p>a report</p>")
    (dataset.folder / "report/shares.svg").write_text("<svg/>")

    report = client.get(report_path("mine"))
    viewer = client.get(viewer_path("mine", "bin"))
    picture = client.get(f"{report_path('mine')}/shares.svg")

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
    client: TestClient, object_store: ObjectStore
):
    store = f"{object_store.url}/store"
    declare_in(Path.cwd(), "mine", attributes("mine", exports=["bin"], store=store))
    build_dataset(load_declared(list_declared()["mine"]))

    with object_store.counted() as count:
        viewer = client.get(viewer_path("mine", "bin"))

    assert viewer.status_code == 200
    assert count == {"LIST": 4}  # of the export and of what it is made of


def test_a_report_that_is_not_made_yet_says_how(client: TestClient):
    assert "tokflow report mine" in client.get(report_path("mine")).text


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
def test_nothing_of_a_url_becomes_a_path(client: TestClient, path: str):
    answer = client.get(path)

    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_an_export_that_is_not_built_is_an_error_that_names_it(client: TestClient):
    answer = client.get(viewer_path("mine", "bin"))

    assert answer.status_code == 404
    assert "bin" in answer.text


def test_a_page_of_another_site_cannot_make_this_one_work(client: TestClient):
    path = report_path("mine")

    for site in ("cross-site", "same-site"):
        assert client.get(path, headers={"Sec-Fetch-Site": site}).status_code == 403
    assert client.post(path).status_code == 403
    assert client.get(path, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_all_else_is_of_dagster(client: TestClient):
    assert client.get("/tokflows/mine/report").text == "of Dagster"
    assert client.get("/assets/mine/report").text == "of Dagster"

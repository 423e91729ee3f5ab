"""The web UI of `tokflow ui`, which answers its own pages alone."""

import http.client
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest

from tokflow_tests.ui.browser import Visit, launch_job, visiting
from tokflow_tests.ui.project import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.ui

RELOAD = "mutation{reloadWorkspace{__typename}}"


@pytest.fixture(scope="module")
def served(built_project: Path, browser: "Browser") -> Iterator[Served]:
    """The project, which has a report, for `demo_build` draws what `tokflow run` does not."""
    with serving(built_project, "tokflow", "ui") as served:
        with visiting(browser) as visit:
            launch_job(visit, served, "demo_build")
        yield served


def status_of(
    served: Served, method: str, path: str, headers: Mapping[str, str], body: str | None = None
) -> int:
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=60)
    with closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        return connection.getresponse().status


@pytest.mark.parametrize(
    "foreign",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_request_of_another_site_is_answered_403(foreign: dict[str, str], served: Served):
    query = '{"query": "{version}"}'

    assert status_of(served, "POST", "/graphql", {}, query) == 200
    assert status_of(served, "POST", "/graphql", foreign, query) == 403


def test_a_mutation_in_a_url_is_answered_403(served: Served):
    assert status_of(served, "GET", f"/graphql?query={quote(RELOAD)}", {}) == 403


def test_a_build_has_drawn_the_report(served: Served, visit: Visit):
    visit.page.goto((served.folder / "data/store/demo/report/report.html").as_uri())
    visit.page.get_by_role("heading", name="Vocabulary", exact=True).wait_for()


def test_tokflow_ui_connects_to_this_machine_alone(served: Served):
    assert "AF_UNIX" in served.trace.read_text(), "those of its processes with each other"
    assert served.peers() <= {"127.0.0.1", "::1"}

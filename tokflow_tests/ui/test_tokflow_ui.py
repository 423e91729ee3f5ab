"""The web UI of `tokflow ui`, which answers its own pages alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tokflow_tests.ui.browser import Visit, launch_job, visiting
from tokflow_tests.ui.project import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.ui


@pytest.fixture(scope="module")
def served(built_project: Path, browser: "Browser") -> Iterator[Served]:
    """The project, which has a report, for `demo_build` draws what `tokflow run` does not."""
    with serving(built_project, "tokflow", "ui") as served:
        with visiting(browser) as visit:
            launch_job(visit, served, "demo_build")
        yield served


def status_of(url: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
    own = {"Content-Type": "application/json", **(headers or {})}
    try:
        return int(urlopen(Request(f"{url}{path}", body, own), timeout=60).status)
    except HTTPError as error:
        return error.code


def test_a_request_of_another_site_is_answered_403(served: Served):
    query, foreign = b'{"query": "{version}"}', {"Origin": "http://evil.example"}

    assert status_of(served.url, "/graphql", query) == 200
    assert status_of(served.url, "/graphql", query, foreign) == 403


def test_a_build_has_drawn_the_report(served: Served, visit: Visit):
    visit.page.goto((served.folder / "data/store/demo/report/report.html").as_uri())
    visit.page.get_by_role("heading", name="Vocabulary", exact=True).wait_for()


def test_tokflow_ui_connects_to_this_machine_alone(served: Served):
    assert "AF_UNIX" in served.trace.read_text(), "those of its processes with each other"
    assert served.peers() <= {"127.0.0.1", "::1"}

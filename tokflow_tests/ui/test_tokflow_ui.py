"""The web UI of `tokflow ui`, which serves reports and viewers beside Dagster's pages."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tokflow_tests.ui.browser import Visit, launch_job, visiting
from tokflow_tests.ui.project import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.ui

LINKS = {
    "report": ("Open the report", "Vocabulary"),
    "exports/parquet": ("Page through the sequences", "Legend"),
}
"""Of an asset: its link to a page, and a heading of that page."""


@pytest.fixture(scope="module")
def served(built_project: Path, browser: "Browser") -> Iterator[Served]:
    with serving(built_project, "tokflow", "ui") as served:
        with visiting(browser) as visit:  # `tokflow run` draws no report
            launch_job(visit, served, "demo_build")
        yield served


@pytest.mark.parametrize("asset", LINKS)
def test_the_page_of_an_asset_leads_to_the_page_that_shows_it(
    asset: str, served: Served, visit: Visit
):
    link, heading = LINKS[asset]
    visit.page.goto(f"{served.url}/assets/demo/{asset}")
    visit.page.get_by_role("link", name=link).click()
    visit.page.get_by_role("heading", name=heading, exact=True).wait_for()

    assert visit.page.url.startswith(f"{served.url}/tokflow/demo/")


def test_the_pictures_of_the_report_are_shown_on_its_asset(served: Served, visit: Visit):
    visit.page.set_viewport_size({"width": 1440, "height": 1600})
    visit.page.goto(f"{served.url}/assets/demo/report")
    shown = visit.page.locator("img[src^='/tokflow/demo/report/']").first

    shown.wait_for()

    assert shown.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300
    visit.photograph("report_asset")


def test_tokflow_ui_connects_to_this_machine_alone(served: Served):
    assert "AF_UNIX" in served.trace.read_text(), "those of its processes with each other"
    assert served.peers() <= {"127.0.0.1", "::1"}

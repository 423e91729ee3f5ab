"""The web UI of `tokflow ui`, which serves reports and viewers beside Dagster's pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tokflow_tests.ui.browser import Visit
from tokflow_tests.ui.project import Served, serving

pytestmark = pytest.mark.ui

LINKS = {
    "report": ("Open the report", "Vocabulary"),
    "exports/parquet": ("Page through the sequences", "Legend"),
}
"""Of an asset: its link to a page, and a heading of that page."""


@pytest.fixture(scope="module")
def served(built_project: Path) -> Iterator[Served]:
    with serving(built_project, "tokflow", "ui") as served:
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


def test_tokflow_ui_connects_to_this_machine_alone(served: Served):
    assert "AF_UNIX" in served.trace.read_text(), "those of its processes with each other"
    assert served.peers() <= {"127.0.0.1", "::1"}

"""The report opened from disk, as a person opens a file that was sent to him."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tokflow_tests.ui.browser import visiting
from tokflow_tests.ui.project import make_project

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.ui

SCHEMES: dict[str, Literal["light", "dark"]] = {"light": "light", "dark": "dark"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report of a dataset that is built."""
    project = make_project(tmp_path_factory.mktemp("told"))
    for command in (["run", "demo"], ["report", "demo", "-o", "report.html"]):
        done = subprocess.run(
            [sys.executable, "-m", "tokflow", *command],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return project / "report.html"


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_report_asks_for_nothing_and_fits_a_screen_in_both_schemes(
    scheme: str, width: int, report: Path, browser: "Browser"
):
    with visiting(browser, width=width, scheme=SCHEMES[scheme]) as visit:
        said: list[str] = []
        visit.page.on("console", lambda message: said.append(message.text))
        visit.page.goto(report.as_uri())

        visit.photograph(f"report_{scheme}_{width}", whole=True)

        assert [url for url in visit.urls if not url.startswith("data:")] == [report.as_uri()]
        assert said == []
        wide = "[document.documentElement.scrollWidth, ...[...document.images].map(i => i.width)]"
        assert max(visit.page.evaluate(wide)) <= width
        colours = visit.page.evaluate(
            "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"
        )
        assert (brightness(colours[0]) < brightness(colours[1])) == (scheme == "light")


def brightness(colour: str) -> float:
    """Return the sum of the parts of `rgb(31, 35, 40)`; nothing is as bright as white."""
    parts = colour.removesuffix(")").split("(")[1].split(",")
    return 765.0 if len(parts) == 4 else sum(float(part) for part in parts)

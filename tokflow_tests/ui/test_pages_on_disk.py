"""The report and the viewer opened from disk, as a person opens a file that was sent to him."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tokflow_tests.ui.browser import visiting
from tokflow_tests.ui.project import run_tokflow

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.ui

SCHEMES: dict[str, Literal["light", "dark"]] = {"light": "light", "dark": "dark"}


COMMANDS = {
    "report": ("report", "demo", "-o", "report.html"),
    "viewer": ("inspect", "data/store/demo/exports/parquet/latest", "--html", "viewer.html"),
}


@pytest.fixture(scope="module")
def folder(built_project: Path) -> Path:
    """A folder with both pages."""
    for command in COMMANDS.values():
        run_tokflow(*command, folder=built_project)
    return built_project


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_asks_for_nothing_and_fits_a_screen_in_both_schemes(
    name: str, scheme: str, width: int, folder: Path, browser: "Browser"
):
    url = (folder / f"{name}.html").as_uri()
    with visiting(browser, width=width, scheme=SCHEMES[scheme]) as visit:
        said: list[str] = []
        visit.page.on("console", lambda message: said.append(message.text))
        visit.page.on("pageerror", lambda error: said.append(str(error)))
        visit.page.goto(url)

        visit.photograph(f"{name}_{scheme}_{width}", whole=True)

        assert [asked for asked in visit.urls if not asked.startswith("data:")] == [url]
        assert said == []
        wide = "[document.documentElement.scrollWidth, ...[...document.images].map(i => i.width)]"
        assert max(visit.page.evaluate(wide)) <= width
        colours = visit.page.evaluate(
            "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"
        )
        assert (brightness(colours[0]) < brightness(colours[1])) == (scheme == "light")


ANCHORS = {"report": "", "viewer": "#train=220200"}
"""Where pictures for readers are taken."""


@pytest.mark.parametrize("name", ANCHORS)
def test_a_picture_of_a_page_is_taken_for_readers(name: str, folder: Path, browser: "Browser"):
    height = {"report": 1110, "viewer": 700}[name]
    with visiting(browser, width=1280, height=height, scale=1.25) as visit:
        visit.page.goto(f"{(folder / f'{name}.html').as_uri()}{ANCHORS[name]}")

        assert visit.photograph(name).stat().st_size > 20_000


def brightness(colour: str) -> float:
    """Return the sum of the parts of `rgb(31, 35, 40)`; nothing is as bright as white."""
    parts = colour.removesuffix(")").split("(")[1].split(",")
    return 765.0 if len(parts) == 4 else sum(float(part) for part in parts)

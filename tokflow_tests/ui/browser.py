"""Debian's chromium, driven by playwright, with a list of all that its pages ask for."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest

from tokflow_tests.ui.project import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
PICTURES = Path(os.environ.get("TOKFLOW_PICTURES", ROOT / "build" / "pictures"))
"""Where the tests leave pictures of the pages that they open. In docs/pictures, graph.png and
report.png are copies of them; viewer.png is one of chats, which have tokens without a loss."""

QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-quic",
)  # fmt: skip
"""Options by which chromium itself asks nobody for anything."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A window with one page, and what it has asked for."""

    page: "Page"
    urls: list[str] = field(default_factory=list)

    def hosts(self) -> set[str]:
        """Return the hosts that the page asked; a page of a file, and data in a URL, ask none."""
        return {host for url in self.urls if (host := urlsplit(url).hostname)}

    def photograph(self, name: str, *, whole: bool = False) -> Path:
        """Write what the window shows, or the whole page, to `<name>.png` among the pictures."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        self.page.screenshot(path=path, full_page=whole)
        return path


@contextmanager
def chromium() -> "Iterator[Browser]":
    """Start chromium without a window."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or pytest.fail(
        "chromium is not there: install Debian's, `apt-get install chromium`"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=QUIET)
        yield browser
        browser.close()


@contextmanager
def visiting(
    browser: "Browser",
    *,
    width: int = 1440,
    height: int = 900,
    scheme: Literal["light", "dark"] = "light",
    scale: float = 1,
) -> Iterator[Visit]:
    """Open a window of that size in a profile of its own; pictures of it are `scale` times as
    large."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        device_scale_factor=scale,
        reduced_motion="reduce",
    )
    context.set_default_timeout(60_000)
    visit = Visit(context.new_page())
    context.on("request", lambda request: visit.urls.append(request.url))
    visit.page.on("websocket", lambda socket: visit.urls.append(socket.url))
    yield visit
    context.close()


def launch_job(visit: Visit, served: Served, name: str, *, ends: str = "Success") -> None:
    """Launch a job on its page, and wait until it has ended, by default well."""
    visit.page.goto(f"{served.url}/locations/tales/jobs/{name}/playground")
    visit.page.get_by_role("button", name="Launch run").click()
    ended = visit.page.get_by_text(ends, exact=True).first
    # Asked of a job with partitions, if they have been loaded by then.
    sure = visit.page.get_by_role("button", name="Confirm")
    sure.or_(ended).first.wait_for(timeout=300_000)
    if sure.is_visible():
        sure.click()
    ended.wait_for(timeout=300_000)

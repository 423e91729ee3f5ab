"""A dataset in the web UI of `dagster dev`: seen, built, looked at, changed and built again."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow.parquet as parquet
import pytest

from tokflow_tests.ui.browser import Visit, launch_job, visiting
from tokflow_tests.ui.project import Served, make_project, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.ui

ASSETS = {"raw", "files", "tokenizer", "tokens", "split", "sequences", "bin", "parquet", "report"}

GRAPH = "/locations/tales/asset-groups/demo/lineage"

NODES = """() => Object.fromEntries([...document.querySelectorAll('foreignObject')].map(node => {
    const box = node.getBoundingClientRect();
    const name = node.textContent.split('Latest event')[0].split(/[ )]/).pop();
    return [name, {text: node.textContent, x: box.x, y: box.y,
        right: box.right, bottom: box.bottom}];
}))"""

GREEN_BORDERS = "document.querySelectorAll('[style*=\"border: var(--color-accent-green)\"]').length"
"""Number of green boxes in a small graph, which shows names alone."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`dagster dev` in a project of which nothing is built."""
    project = make_project(tmp_path_factory.mktemp("tales"))
    with serving(project, "dagster", "dev", "-h", "127.0.0.1") as served:
        yield served


@pytest.fixture(scope="module")
def built(served: Served, browser: "Browser") -> Served:
    """The same after its files were found and all was materialized, by clicks."""
    with visiting(browser, width=2200) as visit:
        launch_job(visit, served, "demo_scan")
        visit.page.goto(f"{served.url}{GRAPH}")
        visit.page.get_by_role("button", name="Materialize all").click()
        visit.page.get_by_role("button", name="All", exact=True).click()
        visit.page.get_by_role("button", name="Launch backfill").click()
        wait_until(lambda: green(visit) == ASSETS, visit)
        assert visit.hosts() == {"127.0.0.1"}
    return served


def wait_until(is_so: Callable[[], bool], visit: Visit) -> None:
    """Wait for what a page of Dagster, which asks for news every few seconds, comes to show."""
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline, visit.photograph("late")
        visit.page.wait_for_timeout(500)


def green(visit: Visit) -> set[str]:
    """Return the assets in the graph that are there in full, none of their checks failed."""
    nodes = visit.page.evaluate(NODES)
    full = ("Materialized", "100% filled")
    return {
        name
        for name, node in nodes.items()
        if any(word in node["text"] for word in full) and "Failed" not in node["text"]
    }


def red(visit: Visit) -> set[str]:
    """Return the assets in the graph of which something failed, of its partitions or checks."""
    nodes = visit.page.evaluate(NODES)
    words = ("failed", "0 / 1 passed")
    return {of for of, node in nodes.items() if any(word in node["text"].lower() for word in words)}


def unsynced(visit: Visit) -> set[str]:
    """Return the assets in the graph of which Dagster says that what they come from is newer."""
    nodes = visit.page.evaluate(NODES)
    return {name for name, node in nodes.items() if "Unsynced" in node["text"]}


def test_the_graph_of_a_dataset_fits_on_a_screen_and_runs_from_raw_to_exports(
    served: Served, visit: Visit
):
    visit.page.set_viewport_size({"width": 2200, "height": 800})  # large enough for names
    visit.page.goto(f"{served.url}{GRAPH}")
    wait_until(lambda: visit.page.evaluate(NODES).keys() >= ASSETS, visit)

    nodes = visit.page.evaluate(NODES)

    assert nodes.keys() == ASSETS
    order = ["raw", "tokenizer", "tokens", "split", "sequences", "parquet", "report"]
    columns = [nodes[name]["x"] for name in order]
    assert columns == sorted(set(columns))
    for node in nodes.values():
        assert 0 < node["x"] < node["right"] < 2200
        assert 0 < node["y"] < node["bottom"] < 800


def test_materialize_all_makes_every_asset_green(built: Served, browser: "Browser"):
    with visiting(browser, width=1400, height=520, scale=1.25) as visit:
        visit.page.goto(f"{built.url}{GRAPH}")
        visit.page.get_by_text("Hide navigation").click()
        visit.page.reload()

        wait_until(lambda: visit.page.evaluate(GREEN_BORDERS) == len(ASSETS), visit)

        visit.photograph("graph")


IMAGES = "images => images.map(image => [image.alt, image.naturalWidth])"


def test_the_pictures_of_the_report_are_on_its_asset(built: Served, visit: Visit):
    visit.page.set_viewport_size({"width": 1280, "height": 2400})
    visit.page.goto(f"{built.url}/assets/demo/report")
    whole = visit.page.locator("img[src^='data:image/svg+xml;base64,']")

    visit.page.get_by_text("[Show Markdown]").wait_for()
    visit.photograph("report_asset")
    visit.page.get_by_text("[Show Markdown]").click()  # more than 1,000 characters
    whole.first.wait_for()
    visit.photograph("report_pictures")
    in_full = dict(whole.evaluate_all(IMAGES))

    assert {"Document lengths", "Use of the vocabulary"} < in_full.keys()
    assert min(in_full.values()) > 300


CUT = """() => [...document.querySelectorAll('table')].map(table => table.parentElement)
    .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.innerText)"""
"""Texts of tables that are wider than the column that shows them."""


@pytest.mark.parametrize(
    "asset",
    ["raw", "files", "tokenizer", "tokens", "split", "sequences", "exports/bin", "exports/parquet"],
)
def test_nothing_on_the_page_of_an_asset_is_cut_at_1280_pixels(
    asset: str, built: Served, visit: Visit
):
    visit.page.set_viewport_size({"width": 1280, "height": 2400})
    visit.page.goto(f"{built.url}/assets/demo/{asset}")
    visit.page.get_by_role("cell", name="summary").wait_for()
    visit.page.wait_for_timeout(2_000)

    visit.photograph(asset.replace("/", "_"))

    assert visit.page.evaluate(CUT) == []


def test_files_has_state_tokens_and_build_of_each(built: Served, visit: Visit):
    visit.page.goto(f"{built.url}/assets/demo/files")
    cells = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    rows = visit.page.locator("table table tr")
    rows.first.wait_for()

    head, *files = rows.evaluate_all(cells)[-5:]

    assert head == ["state", "tokens", "built", "file"]
    for number, (state, tokens, built_at, file) in enumerate(files):
        assert (state, file.replace("\u200b", "")) == ("built", f"part-{number}.parquet")
        assert tokens.endswith("k")
        assert built_at


def test_an_edited_yaml_is_shown_as_it_was_built(built: Served, visit: Visit):
    visit.page.set_viewport_size({"width": 2200, "height": 800})
    yaml_file = built.folder / "tales/defs/demo/defs.yaml"
    before = yaml_file.read_text()

    for text in (before.replace("sequence_length: 512", "sequence_length: 256"), before):
        yaml_file.write_text(text)
        launch_job(visit, built, "demo_build")

        length = text.partition("sequence_length: ")[2].split()[0]
        visit.page.goto(f"{built.url}{GRAPH}")
        wait_until(lambda: green(visit) == ASSETS and not unsynced(visit), visit)
        visit.page.goto(f"{built.url}/assets/demo/sequences")
        config = visit.page.get_by_text(f'"sequence_length": {length}')  # of the definition
        wait_until(lambda of=config: of.count() > 0, visit)


def test_numbers_of_files_are_drawn_as_plots(built: Served, visit: Visit):
    visit.page.set_viewport_size({"width": 1440, "height": 2400})
    visit.page.goto(f"{built.url}/assets/demo/tokens")
    visit.page.get_by_role("button", name="Plots").click()

    visit.page.locator("canvas").nth(1).wait_for()

    visit.photograph("plots")


def test_a_changed_file_leaves_exports_unsynced_until_the_next_build(built: Served, visit: Visit):
    visit.page.set_viewport_size({"width": 2200, "height": 800})
    file = built.folder / "data/raw/part-1.parquet"
    table = parquet.read_table(file)
    parquet.write_table(table.slice(0, len(table) - 1), file)

    launch_job(visit, built, "demo_scan")

    visit.page.goto(f"{built.url}{GRAPH}")
    wait_until(lambda: {"bin", "parquet"} <= unsynced(visit), visit)
    visit.photograph("unsynced")
    launch_job(visit, built, "demo_build")
    visit.page.goto(f"{built.url}{GRAPH}")
    wait_until(lambda: green(visit) == ASSETS and not unsynced(visit), visit)


def test_a_bad_file_is_red_until_the_build_after_its_repair(built: Served, visit: Visit):
    visit.page.set_viewport_size({"width": 2200, "height": 800})
    file = built.folder / "data/raw/part-2.parquet"
    good = file.read_bytes()
    file.write_bytes(b"no parquet")

    launch_job(visit, built, "demo_build", ends="Failure")

    visit.page.goto(f"{built.url}{GRAPH}")
    wait_until(lambda: red(visit) == ASSETS - {"raw", "report"}, visit)  # a tokenizer of all
    visit.photograph("failed")
    visit.page.goto(f"{built.url}/assets/demo/files?view=checks")
    visit.page.get_by_text("every_file_is_built").first.wait_for()
    visit.photograph("failed_check")
    file.write_bytes(good)
    launch_job(visit, built, "demo_build")
    visit.page.goto(f"{built.url}{GRAPH}")
    wait_until(lambda: green(visit) == ASSETS and not red(visit), visit)


def test_dagster_dev_connects_to_this_machine_alone(built: Served):
    assert "AF_UNIX" in built.trace.read_text(), "those of its processes with each other"
    assert built.peers() <= {"127.0.0.1", "::1"}

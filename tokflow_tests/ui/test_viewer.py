"""The page of `tokflow inspect --html`, opened from the disk: what it shows and obeys."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.pipeline.run import build_dataset
from tokflow.views.viewer_page import make_viewer
from tokflow_tests.chats import chat_dataset
from tokflow_tests.tiny import declare, declare_small
from tokflow_tests.ui.browser import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.ui

HOSTILE = '</script><script>document.title = "x"</script><img src=x onerror="document.title=1">'

READ = """() => DATA.parts.map(({name, windows}) => [name, windows.flatMap(each => {
    const {tokens} = readWindow(each);
    return tokens.map(({segment, column, id, text, from, to, added, isLoss}) => ({
        place: segment.place + column, file: DATA.files[segment.file], row: segment.row,
        id, text, from, to, added, isLoss,
    }));
})])"""
"""All tokens of a page, as it has read them."""

SHOWN = "() => [...document.querySelectorAll('#tokens .t')].map(node => node.textContent)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of three datasets, and a page of each in `<name>.html`."""
    folder = tmp_path_factory.mktemp("viewed")
    split = {"parts": {"train": {"fraction": 0.7}, "validation": {"fraction": 0.3}}}
    exports = ["bin", "parquet", "llmc"]
    for name in ("small", "chats", "hostile"):
        (folder / name).mkdir()
    build_dataset(declare_small(folder / "small", exports=exports, split=split))
    packing = {"sequence_length": 128, "strategy": "best_fit"}
    build_dataset(chat_dataset(folder / "chats", packing=packing, exports=["parquet"]))
    raw = {"a.jsonl": [HOSTILE]}
    packing = {"sequence_length": 100}
    build_dataset(declare(folder / "hostile", raw, packing=packing, exports=["parquet"]))
    for name in ("small", "chats"):
        export = folder / name / "store" / name / "exports/parquet"
        (folder / f"{name}.html").write_bytes(make_viewer(export))
    export = folder / "hostile/store/tiny/exports/parquet"
    (folder / "hostile.html").write_bytes(make_viewer(export))
    return folder


@pytest.fixture
def small(visit: Visit, folder: Path) -> Iterator["Page"]:
    """The page of the small dataset, sequences of 8 tokens; it may ask for nothing but itself."""
    visit.page.goto((folder / "small.html").as_uri())
    yield visit.page
    assert {*visit.urls} == {(folder / "small.html").as_uri()}


def place(page: "Page") -> str:
    return page.evaluate("() => location.hash")


@pytest.mark.parametrize("name", ["bin", "parquet", "llmc"])
def test_every_token_of_a_page_has_the_characters_that_trace_names(
    name: str, visit: Visit, folder: Path, tmp_path: Path
):
    export = folder / "small/store/small/exports" / name
    (tmp_path / "page.html").write_bytes(make_viewer(export))
    visit.page.goto((tmp_path / "page.html").as_uri())

    tokens = [(part, token) for part, of in visit.page.evaluate(READ) for token in of]

    assert len(tokens) == 72
    for part, token in tokens:
        start = token["place"]
        (origin,) = trace_tokens(export, part=part, start=start, stop=start + 1)
        assert (token["file"], token["row"]) == (origin.raw_file, origin.row)
        assert token["id"] == origin.token_ids[0]
        assert ([token["added"]] if token["added"] else []) == [*origin.added]
        if not token["added"]:
            assert (token["from"], token["to"]) == (origin.char_start, origin.char_stop)


def test_keys_lead_from_sequence_to_sequence(small: "Page"):
    places = []
    for key in ("ArrowRight", "j", "ArrowLeft", "k", "End", "Home", "p"):
        small.keyboard.press(key)
        places.append(place(small))

    last = small.evaluate("() => DATA.parts[0].windows.at(-1)[0]")
    steps = [8, 16, 8, 0, last, 0]
    assert places == [*(f"#train={at}" for at in steps), "#validation=0"]


def test_a_sequence_that_is_not_in_the_page_is_refused_and_the_place_kept(small: "Page"):
    small.fill("#number", "99")
    small.press("#number", "Tab")

    assert small.evaluate("() => document.querySelector('#number').validationMessage") == (
        "This page has 0 to 5, of 6."
    )
    assert small.inner_text("#summary").startswith("Sequence 0")
    small.fill("#number", "2")
    small.press("#number", "Tab")
    assert small.inner_text("#summary").startswith("Sequence 2")


def test_keys_lead_from_token_to_token_and_show_its_card(small: "Page"):
    small.keyboard.press("t")
    small.keyboard.press("ArrowRight")

    card = small.locator("#card")
    assert card.is_visible()
    text = card.inner_text()
    assert text.startswith('"n"\n')
    assert [line for line in ("a.jsonl", "6e", "110") if line not in text] == []
    assert place(small) == "#train=1"
    small.keyboard.press("Escape")
    assert card.is_hidden()
    small.keyboard.press("ArrowRight")
    assert place(small) == "#train=8"


def test_the_address_keeps_the_place(small: "Page", folder: Path):
    small.goto("about:blank")
    small.goto((folder / "small.html").as_uri() + "#train=10")

    assert small.locator("#number").input_value() == "1"
    assert small.evaluate("() => document.activeElement.dataset.i") == "2"


def test_text_is_found_across_tokens_in_all_that_the_page_has(small: "Page"):
    small.keyboard.press("/")
    small.keyboard.type("AND a")
    small.locator("#matches").filter(has_text="1 of 1").wait_for()

    assert "".join(small.locator("#tokens .hit").all_inner_texts()).replace("·", " ") == "and a"
    assert place(small) == "#train=8"


def test_ids_are_found_in_a_row(small: "Page"):
    small.keyboard.press("/")
    small.keyboard.type("#101 #256")
    small.locator("#matches").filter(has_text="1 of").wait_for()

    hits = small.locator("#tokens .hit").all_inner_texts()
    assert hits == ["e", "<eos>"]


def test_ids_take_the_place_of_text(small: "Page"):
    small.keyboard.press("v")

    assert small.evaluate(SHOWN)[:4] == ["111", "110", "101", "256"]


def test_a_hostile_document_is_shown_and_not_run(visit: Visit, folder: Path):
    visit.page.goto((folder / "hostile.html").as_uri())

    shown = "".join(visit.page.evaluate(SHOWN)).replace("·", " ")  # the mark of a space alone
    assert shown == HOSTILE + "<eos>"
    assert visit.page.title() == "tiny · export parquet"
    assert visit.page.locator("main img, main script").count() == 0


def test_loss_tokens_alone_are_underlined(visit: Visit, folder: Path):
    visit.page.goto((folder / "chats.html").as_uri())

    is_clear = "getComputedStyle(node).borderBottomColor === 'rgba(0, 0, 0, 0)'"
    nodes = "[...document.querySelectorAll('#tokens .t')]"
    underlined = visit.page.evaluate(f"() => {nodes}.map(node => !({is_clear}))")
    ((_, tokens),) = visit.page.evaluate(READ)
    is_loss = [token["isLoss"] for token in tokens][: len(underlined)]
    assert underlined == is_loss
    assert 0 < sum(is_loss) < len(is_loss)
    visit.photograph("viewer")

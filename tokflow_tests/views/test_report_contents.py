"""Numbers and texts of a report, by the functions that find them."""

import base64
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tokflow.audit.token_texts import TokenTexts
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.plan import make_plan
from tokflow.views.picture import Picture, bars_picture
from tokflow.views.report_facts import ShardSample, StoreFacts, find_excerpts, shown_tokens
from tokflow.views.report_page import inline, make_report
from tokflow.views.report_pictures import count_ids, open_texts
from tokflow_tests.chats import PLAIN, chat, chat_dataset
from tokflow_tests.pipeline.test_mixture import declare_mixture
from tokflow_tests.tiny import EOS, build, declare, declare_small, many_ids, tokenize


def facts_of(dataset: Dataset) -> StoreFacts:
    build(dataset)
    return StoreFacts(make_plan(dataset))


def texts_of(facts: StoreFacts) -> TokenTexts:
    texts = open_texts(facts.plan)
    assert texts is not None
    return texts


@pytest.fixture
def small(built_small: Path) -> StoreFacts:
    return StoreFacts(make_plan(declare_small(built_small)))


def test_ids_are_counted_and_those_never_met_are_named(small: StoreFacts):
    use = count_ids(small, texts_of(small))

    assert use is not None
    assert use.frequent[0] == (EOS, 10)
    assert (use.counts.sum(), use.read) == (72, "all 72 tokens of 3 files")
    assert 0 in use.unused
    assert ord("e") not in use.unused
    assert EOS + 1 not in use.unused  # BOS, a special token


def test_a_sample_takes_an_equal_share_of_each_file_and_what_small_ones_leave(tmp_path: Path):
    files = {"a.jsonl": ["1234567"], "b.jsonl": ["1"], "c.jsonl": ["123456789"]}
    dataset = declare(tmp_path, files)
    shards = tuple(tokenize(dataset, key) for key in files)
    sample = ShardSample(shards=shards, num_all=30)

    shares = {len(of) for of in sample.beginnings(12)}

    assert shares == {2, 5}
    assert sample.read_of(12) == "12 tokens, the first of each of 3 of 30 files"
    assert sum(len(of) for of in sample.beginnings(1_000)) == sample.num_tokens == 20


def test_tokens_that_are_no_pieces_of_the_text_are_decoded_alone(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(many_ids())
    tokenizer = {"kind": "file", "name": "tokenizer.json", "eos_token": "<eos>"}
    facts = facts_of(declare(tmp_path, {"a.jsonl": ["w3 w5 w3"]}, tokenizer=tokenizer))
    texts = texts_of(facts)
    use = count_ids(facts, texts)

    assert use is not None
    assert use.frequent == [(3, 2), (5, 1), (70_000, 1)]
    assert list(texts.pieces([3, 5])) == [((3,), "w3"), ((5,), "w5")]


def test_an_excerpt_has_the_documents_of_a_sequence_with_their_boundaries_and_padding(
    tmp_path: Path,
):
    packing = {"sequence_length": 7, "strategy": "greedy", "padding_side": "left"}
    texts = {"a.jsonl": ["ab", "c", "defg"]}
    facts = facts_of(declare(tmp_path, texts, packing=packing, exports=["parquet"]))
    texts_of_tokens = texts_of(facts)

    (excerpt,) = find_excerpts(facts, texts_of_tokens)

    assert excerpt.name == "train: sequence 0"
    shown = {
        of.document: [text for text, _, _ in shown_tokens(of, texts_of_tokens)]
        for of in excerpt.segments
    }
    assert shown == {
        None: ["<eos>"] * 2,
        "a.jsonl:0": ["a", "b", "<eos>"],
        "a.jsonl:1": ["c", "<eos>"],
    }
    page = make_report(facts.plan.graph.dataset).html.decode().partition('class="text"')[2]
    assert page.index("2 padding") < page.index("a.jsonl:0") < page.index(">a</")


def test_chats_have_a_section_with_their_numbers(tmp_path: Path, small: StoreFacts):
    chats = [chat("x", "a", "b", "c", system="s"), chat("z")]
    dataset = chat_dataset(tmp_path, chats, template=PLAIN)
    build(dataset)

    page = make_report(dataset).html.decode()

    section = page.split('<h2 id="chats">')[1].split("</section>")[0]
    tiles = {name: value for value, name in re.findall(r"<b>(.*?)</b><span>(.*?)</span>", section)}
    assert {"supervised tokens", "supervised"} < tiles.keys()
    assert [tiles["turns"], tiles["tokens of the system"]] == ["2", "1"]
    assert tiles["tokens of the user"] == "3"
    assert tiles["tokens of the assistant"] == "4"  # with a stop token each
    assert "tokens of tools" not in tiles
    assert 'id="chats"' not in make_report(small.plan.graph.dataset).html.decode()


def test_a_mixture_shows_what_was_planned_and_what_came_out(tmp_path: Path):
    sources = {"code": {"epochs": 2}, "prose": {"epochs": 0.5}}
    mixture = declare_mixture(tmp_path, {"sources": sources}, exports=["bin"])

    facts = facts_of(mixture)

    train = {of["source"]: of for of in facts.source_rows if of["part"] == "train"}
    planned = {name: of["planned_tokens"] for name, of in train.items()}
    assert planned == {"code": 36, "prose": 40}
    assert {name: of["tokens"] for name, of in train.items()} == planned


def make_bars(*names: str) -> Picture:
    return bars_picture("bars", "Bars", [(name, 1 + n, f"{n}") for n, name in enumerate(names)])


def test_the_same_numbers_give_the_same_bytes_without_a_date():
    assert make_bars("a", "b").svg == make_bars("a", "b").svg
    assert b"<dc:" not in make_bars("a").svg


def test_a_user_s_own_style_changes_no_byte():
    import matplotlib as mpl

    with mpl.rc_context({"patch.edgecolor": "red", "savefig.bbox": "tight", "xtick.top": True}):
        styled = make_bars("a").svg

    assert styled == make_bars("a").svg


def test_a_name_from_the_data_is_text_in_a_drawing():
    names = ("<script>alert(1)</script>", "--><b>", "$x^2$", "a\x1b[31m", "\udcff", '> id="a_1"')

    root = ElementTree.fromstring(make_bars(*names).svg)

    texts = [of.text for of in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == ["<script>ale…(1)</script>", "--><b>"]
    assert texts[2:6] == ["$x^2$", "a\\x1b[31m", "\\udcff", '> id="a_1"']


def test_colours_are_the_page_s_and_a_name_that_spells_one_stays():
    shown = inline(make_bars("#757b86"))

    assert ">#757b86<" in shown
    assert "var(--ink-2)" in shown
    assert shown.count("#757b86") == 1


def test_a_picture_is_markdown_that_needs_no_file():
    picture = make_bars("a")

    before, _, data = picture.markdown().partition(";base64,")

    assert before == "![Bars](data:image/svg+xml"
    assert base64.b64decode(data.rstrip(")")) == picture.svg

"""The page of a report, without a browser: its bytes, and what is in them."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError
from tokflow.pipeline.dataset import Dataset
from tokflow.views.report_page import MAX_BYTES, ReportPage, make_report, write_report
from tokflow_tests.tiny import (
    build,
    copy_of,
    declare,
    declare_small,
    load_dataset,
    write_raw,
    write_texts,
    write_yaml,
)

HOSTILE = "<script>alert(1)</script>"
"""A text, and the name of a token."""

HOSTILE_NAME = "<img src=x onerror=alert(2)>'&\".jsonl"


TOKENIZER = {
    "kind": "trained",
    "files": "a.jsonl",
    "vocab_size": 300,
    "special_tokens": [HOSTILE],
    "eos_token": HOSTILE,
}


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, html: bytes) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a small dataset that is built, of which one file is hostile, one new and one bad."""
    folder = tmp_path_factory.mktemp("report")
    write_texts(folder / "raw" / HOSTILE_NAME, [HOSTILE] * 5)
    write_texts(folder / "raw" / "a.jsonl", ["one two", "drei €", "слово", "漢字", ""] * 3)
    write_texts(folder / "raw" / "bad.jsonl", ["fine"])
    with (folder / "raw" / "bad.jsonl").open("a") as file:
        file.write('{"text": 5}\n{"text": 7}\n{"text":\n')
    split = {"parts": {"validation": {"fraction": 0.2}, "train": {"fraction": 0.8}}}
    fields = {"split": split, "packing": {"sequence_length": 64}}
    fields |= {"documents": {"on_bad_document": "reject"}, "tokenizer": TOKENIZER}
    dataset = declare_small(folder, **fields)
    build(dataset)
    write_texts(folder / "raw" / "new.jsonl", ["not built"])
    return dataset


@pytest.fixture(scope="module")
def report(dataset: Dataset) -> ReportPage:
    return make_report(dataset)


@pytest.fixture(scope="module")
def html(report: ReportPage) -> bytes:
    return report.html


def test_what_stands_in_the_data_is_text_and_nothing_else(html: bytes):
    page = Elements(html)

    assert not {"script", "img", "iframe", "link", "object"} & {*page.names}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE in page.text
    assert HOSTILE_NAME in page.text


def test_the_page_asks_nobody_for_anything(html: bytes):
    page = Elements(html)

    places = [value for name, value in page.attributes if name.split(":")[-1] in ("src", "href")]
    assert [of for of in places if not str(of).startswith("#")] == []
    assert re.search(rb"url\((?!#)|@import", html) is None
    assert b"default-src 'none'" in html


def test_the_page_has_the_notices_and_each_file_with_its_state_the_new_one_first(html: bytes):
    page = Elements(html).text

    assert "\nrejected: 3 documents: 2 number in place of a string" in page

    assert re.findall(r"\d+ (?:new|built|stale|failed)", page) == ["1 new", "3 built"]
    assert page.index("new.jsonl") < page.index("a.jsonl")


def test_the_page_has_each_picture_that_there_is_something_to_see_in(report: ReportPage):
    assert [of.name for of in report.pictures] == [
        "document_lengths",
        "bytes_per_token_by_file",
        "bytes_per_token_scripts",
        "rejects_by_reason",
        "split_shares",
        "packing_fill",
        "segments_per_sequence",
        "vocabulary_use",
    ]
    titles = Elements(report.html).text
    assert all(of.title in titles for of in report.pictures)


def test_a_dataset_that_is_not_built_has_a_page_of_its_files(tmp_path: Path):
    report = make_report(declare_small(tmp_path))

    assert report.pictures == ()
    assert "tokflow run small" in Elements(report.html).text


def selection_of(report: ReportPage) -> tuple[str, list[str]]:
    """Return the section about the selection, and the cells of its tables."""
    page = report.html.decode()
    section = page[page.index('id="selection"') : page.index('id="tokens"')]
    return section, re.findall(r"<td[^>]*>([^<]*)</td>", section)


def test_what_select_leaves_out_is_told_by_rule_and_by_file(tmp_path: Path):
    texts = {"a.jsonl": ["one", "three"], "b.jsonl": ["eight", "<b>"]}
    dataset = declare(tmp_path, texts, select="num_chars > 3 and num_tokens < 9", exports=["bin"])
    build(dataset)

    section, cells = selection_of(make_report(dataset))
    assert cells[:5] == ["num_chars &gt; 3", "2", "2", "0", "50.00 %"]
    assert cells[5:10] == ["num_tokens &lt; 9", "0", "0", "0", "100.00 %"]
    assert [cells[10][:1], cells[14]] == ["a", "60.00 %"]
    assert '<th scope="col">source</th>' not in section


def test_near_duplicates_are_shown_side_by_side_and_by_similarity(tmp_path: Path):
    texts = {"a.jsonl": ["one text and <b>", "one text and <i>", "one text", "x" * 30]}
    dataset = declare(tmp_path, texts, near_duplicates={"threshold": 0.5, "ngram": 3})
    build(dataset)

    report = make_report(dataset)

    assert "similarities" in [of.name for of in report.pictures]
    _, cells = selection_of(report)
    assert cells == ["0.75", "one text and &lt;i&gt;", "one text and &lt;b&gt;"]


def test_evaluation_texts_that_documents_have_are_told_by_file_and_by_text(tmp_path: Path):
    question = "how many moons has <it>?"
    for name, text in (("found", question), ("clean", "is there a text of which nothing is?")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{text}"}}\n{{"text": "{name}"}}\n')
    texts = {"a.jsonl": [f"So: {question} One.", question, question[:12]], "b.jsonl": ["none"]}
    dataset = declare(tmp_path, texts, attributes={"leaks": {"evaluation": "*.jsonl"}})
    build(dataset)

    section, cells = selection_of(make_report(dataset))
    assert "in the attributes of 2 files" in section
    assert cells[:10] == ["clean.jsonl", "2", "1", "0", "0", "found.jsonl", "2", "1", "1", "3"]
    assert cells[10:] == ["found.jsonl, row 0", "how many", "3"]


def test_a_report_of_a_mixture_has_what_its_sources_keep(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["one", "three"], "b.jsonl": ["fours", "five"]})
    for name in "ab":
        raw, select = {"files": f"raw/{name}.jsonl"}, f"num_chars > {3 + (name == 'b')}"
        config = write_yaml(tmp_path, name=name, raw=raw, select=select, exports=[])
        config.rename(tmp_path / f"{name}.yaml")
    sources = "{a: {config: a.yaml, weight: 2}, b: {config: b.yaml, weight: 1}}"
    mix = f"name: mix\nstore: store\nexports: [bin]\nmixture: {{sources: {sources}}}\n"
    (tmp_path / "mix.yaml").write_text(mix)
    dataset = load_dataset(tmp_path / "mix.yaml")
    build(dataset)

    _, cells = selection_of(make_report(dataset))
    rules = ["num_chars &gt; 3", "1", "1", "0", "50.00 %", "num_chars &gt; 4", "1", "1", "0"]
    assert cells[:9] == rules
    assert cells[10:12] == ["a", "1"]
    assert cells[16] == "b"


@pytest.mark.parametrize(
    "name",
    [
        "tokens/a.jsonl/*/tokens.bin",
        "tokens/a.jsonl/*/documents.parquet",
        "sequences/a.jsonl/*/segments.parquet",
    ],
)
def test_a_damaged_file_is_named(name: str, dataset: Dataset, tmp_path: Path):
    folder = copy_of(dataset.folder.parents[1], tmp_path)
    (path,) = (folder / "store/small").glob(name)
    path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))

    with pytest.raises(CorruptOutputError, match=path.name) as raised:
        make_report(load_dataset(folder / "dataset.yaml"))

    assert "expected sha256" in str(raised.value)


def test_a_stale_export_has_its_reason_and_no_tile_beside_those_of_now(tmp_path: Path):
    dataset = declare_small(tmp_path, exports=["parquet"])
    build(dataset)
    (tmp_path / "raw" / "a.jsonl").unlink()

    report = make_report(dataset)

    page = Elements(report.html).text
    assert page.count("a.jsonl is gone") == 1
    assert "6documents" in page
    assert b"<span>dropped tokens</span>" not in report.html
    (packing,) = [of for of in report.pictures if of.name == "packing_fill"]
    assert b"100 %, stale" in packing.svg


def test_a_page_that_would_be_too_large_has_fewer_rows(
    dataset: Dataset, html: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.views.report_page.MAX_BYTES", len(html) - 100)
    monkeypatch.setattr("tokflow.views.report_page.ROWS", (6, 1, 0))

    assert "The first 1 of 4 rows." in Elements(make_report(dataset).html).text
    assert "of 4 rows" not in Elements(html).text


def test_the_same_store_gives_the_same_bytes_in_a_file_beside_the_outputs(
    dataset: Dataset, html: bytes
):
    path = write_report(dataset)

    assert path == dataset.folder / "report" / "report.html"
    assert path.read_bytes() == html
    assert len(html) < MAX_BYTES
    assert [*path.parent.iterdir()] == [path]

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import tokflow
from tokflow.audit.ancestry import Ancestry
from tokflow.record.facts import known_facts
from tokflow.record.summary import CALIFORNIA, EU, GAP, domains_of, drafts_of
from tokflow_tests.cli.commands import run
from tokflow_tests.pipeline.test_mixture import declare_mixture, declare_source
from tokflow_tests.tiny import TINY, build, declare, write_yaml

PAGES = {
    "a.jsonl": [
        ("https://www.One.org/a", "eins"),
        ("http://user@one.org:80/b?c", "zwei"),
        ("https://two.org", "drei, aber länger"),
    ],
    "b.jsonl": [(None, "no url here"), ("https://two.org/left/out", "x"), ("mailto:a", "what?")],
}
CARD = {
    "description": "Pages.",
    "period": "2019/2020",
    "language": ["de"],
    "sources": {"a*": {"collected": "crawled", "copyrighted": True}, "b*": {"title": "Other"}},
}


def pages(folder: Path, **attributes: Any):
    (folder / "raw").mkdir(parents=True)
    for name, rows in PAGES.items():
        lines = (json.dumps({"url": url, "text": text}) + "\n" for url, text in rows)
        (folder / "raw" / name).write_text("".join(lines))
    given = {"documents": {"keep_columns": ["url"]}, "select": "num_tokens >= 5", "card": CARD}
    return declare(folder, **{**given, "exports": ["bin", "parquet"], **attributes})


@pytest.mark.parametrize("export", ["bin", "parquet"])
def test_domains_have_the_bytes_of_the_documents_in_the_export(export: str, tmp_path: Path):
    exported = build(pages(tmp_path)).export(export).stored

    found = domains_of(exported, "url", Ancestry())

    assert found == [
        ("two.org", 1, len("drei, aber länger".encode())),
        ("(none)", 2, len("no url here") + len("what?")),
        ("one.org", 2, 8),
    ]
    assert domains_of(exported, "link", Ancestry()) == []


def test_a_document_that_a_mixture_repeats_counts_once_and_has_its_columns_each_time(
    tmp_path: Path,
):
    source = {"raw": {"files": "raw/*"}, "documents": {"keep_columns": ["url"]}}
    pages(tmp_path)
    declare_source(tmp_path, "code", {}, **source)
    mixed = declare_mixture(
        tmp_path, {"sources": {"code": {"epochs": 2.5}, "prose": {"epochs": 1}}}
    )
    exported = build(mixed).export("bin").stored

    found = domains_of(exported, "url", Ancestry())

    assert sum(num for _, num, _ in found) == 6
    urls = {(f"code/{name}", row): of[0] for name in PAGES for row, of in enumerate(PAGES[name])}
    documents = tokflow.open_documents(exported.folder).to_arrow().to_pylist()
    taken = [of for of in documents if of["part"] and of["raw_file"].startswith("code")]
    assert len(taken) > 12
    assert all(
        of["url"] == urls[of["raw_file"].replace("@2", "").replace("@3", ""), of["row"]]
        for of in taken
    )


def test_a_document_that_is_cut_counts_once(tmp_path: Path):
    parts = {"train": {"start": 0, "characters": 6}, "rest": {"start": 6, "characters": 100}}
    cut = {"boundary": "character", "parts": parts}
    exported = build(pages(tmp_path, split=cut)).export("bin").stored

    found = domains_of(exported, "url", Ancestry())

    assert sum(num for _, num, _ in found) == 5


def test_the_drafts_have_what_is_known_and_mark_all_else(tmp_path: Path):
    exported = build(pages(tmp_path)).export("bin").stored
    dataset = pages(tmp_path / "again")
    facts = known_facts(exported, {"tiny": dataset.card}, Ancestry())

    drafts = drafts_of(facts, domains_of(exported, "url", Ancestry()))
    eu, california = drafts[EU], drafts[CALIFORNIA]

    assert "less than 1 billion tokens (47 tokens of this dataset, once)" in eu
    crawled = eu.partition("### 2.3 ")[2].partition("### 2.4 ")[0]
    assert "| a* |" in crawled
    assert "| two.org | 1 | 18 B |" in crawled
    assert "one.org" not in crawled  # a tenth of three domains is one
    assert "| Other |" in eu.partition("### Sources to be put under one")[2]
    assert f"### 2.4 User data\n\nNone, or some of those at the end of this section: {GAP}\n" in eu
    assert "* Linguistic characteristics: de" in eu
    assert "| rule: num_tokens >= 5 | 1 |" in eu
    items = [line for line in california.splitlines() if line[:1].isdigit()]
    assert len(items) == 12
    assert items[2] == "3. Number of data points: 6 documents were read; 47 tokens were left in"
    assert items[4] == "5. Protected by copyright, trademark or patent: yes, some"
    assert items[5] == f"6. Purchased or licensed by the developer: {GAP}"
    assert items[6] == f"7. Personal information: {GAP}"
    assert items[9].startswith("10. Time of collection: 2019/2020; whether it goes on: ")


def test_the_command_writes_them_and_counts_the_gaps(tmp_path: Path):
    dataset = pages(tmp_path)
    build(dataset)
    given = {"documents": {"keep_columns": ["url"]}, "select": "num_tokens >= 5", "card": CARD}
    config = write_yaml(tmp_path, **TINY, **given, exports=["bin"])

    result = run("summary", "tiny", "--config", config, "--output", tmp_path / "out", "--json")

    assert result.exit_code == 0, result.output
    files = {Path(of["path"]).name: of["num_gaps"] for of in json.loads(result.stdout)["files"]}
    assert [*files] == [
        *("tiny.eu_training_content.md", "tiny.california_ab_2013.md", "tiny.domains.csv")
    ]
    for name, num_gaps in files.items():
        assert (tmp_path / "out" / name).read_text().count("[TO FILL IN]") == num_gaps
    with (tmp_path / "out/tiny.domains.csv").open() as file:
        assert next(csv.reader(file)) == ["domain", "documents", "bytes"]

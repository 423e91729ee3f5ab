"""The numbers of what was built, and that each of them is shown wherever they are."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tokflow.cli.terminal import print_rows
from tokflow.components.reports import report
from tokflow.pipeline import describe as describe_module
from tokflow.pipeline import run_log
from tokflow.pipeline.describe import (
    DESCRIBE,
    Describe,
    Description,
    Kind,
    formatted,
    formatted_rows,
    full,
    statistics_of,
)
from tokflow.pipeline.run import build_dataset
from tokflow.pipeline.run_log import Lines, Pace, line_of
from tokflow.store.manifest import Manifest
from tokflow.views.report_page import make_report
from tokflow.views.viewer_page import make_viewer
from tokflow_tests.tiny import build, declare_small
from tokflow_tests.views.pages import data_of


def test_a_number_of_the_closing_table_is_one_line_and_is_shown_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def with_words(stage: str) -> Describe:
        def describe_words(manifest: Manifest, run: Mapping[str, Any]) -> Description:
            described = DESCRIBE[stage](manifest, run)
            of_parts = {part: of | {"num_words": 1_234} for part, of in described.parts.items()}
            return Description(described.whole, of_parts)

        return describe_words

    changed = {stage: with_words(stage) for stage in ("split", "export")}
    monkeypatch.setattr(describe_module, "DESCRIBE", DESCRIBE | changed)
    kinds = describe_module.KINDS | {"num_words": Kind("{} word{s}", is_optional=True)}
    monkeypatch.setattr(describe_module, "KINDS", kinds)
    dataset = declare_small(tmp_path, exports=["bin"])
    built = build(dataset)
    [made] = [of for of in built.of("split") if of.output.name == "a.jsonl"]
    statistics = statistics_of(built)

    print_rows(statistics["parts"])

    table = capsys.readouterr().out.splitlines()
    assert (table[0].split()[-1], table[1].split()[-1]) == ("words", "1,234")
    assert [row["num_words"] for row in (*statistics["parts"], *statistics["exports"]["bin"])] == [
        1_234,
        1_234,
    ]
    assert line_of(made) == "split a.jsonl: train 29 tokens (1,234 words)"
    assert r"| words | 1\,234 |" in str(report(made).metadata["parts"].value)
    page = make_report(dataset).html.decode()
    assert page.count('class="n">words</th>') == page.count('<td class="n">1,234</td>') == 2
    facts = data_of(make_viewer(built.export("bin").stored))["facts"]
    assert ["train", "72 tokens (1,234 words)"] in facts


def test_statistics_are_of_the_text_of_each_part_and_of_each_export(tmp_path: Path):
    parts = {"train": {"start": 0, "characters": 14}, "validation": {"start": 14}}
    split = {"boundary": "character", "parts": parts}
    packing = {"strategy": "one_document", "sequence_length": 8, "overlong": "truncate"}
    dataset = declare_small(tmp_path, split=split, packing=packing, exports=["bin", "parquet"])

    statistics = statistics_of(build(dataset))

    assert statistics["text"]["bytes_per_token"] == 0.8611
    train, validation = statistics["parts"]
    assert train == {
        "part": "train",
        "num_documents": 2 + 3 + 2,
        "num_cut_pieces": 3,
        "num_chars": 42,
        "num_tokens": 14 + 2 + 15 + 3 + 17 + 2,
        "tokens_fraction": round(53 / 75, 4),
        "chars_per_token": 0.7925,
        "num_tokens_of_longest": 13,
    }
    assert validation["num_documents"] == 3 + 2 + 1
    rows = statistics["exports"]["parquet"]
    assert [row["num_sequences"] for row in rows] == [7, 6]
    for part, row in zip(statistics["parts"], rows, strict=True):
        assert row["num_exported_tokens"] + row["num_dropped_tokens"] == part["num_tokens"]
        assert row["fill_fraction"] == round(
            row["num_exported_tokens"] / 8 / row["num_sequences"], 4
        )
    assert "fill_fraction" not in statistics["exports"]["bin"][0]


def test_sequences_with_any_padding_are_not_full():
    assert [full(9_999_999, 10_000_000), full(3, 3), full(0, 0)] == [0.9999, 1, 0]
    assert formatted("fill_fraction", 0.9999) == "99.9 %"


def test_a_table_has_no_column_of_zeros_that_are_the_rule():
    rows = [{"part": "a", "num_tokens": 0, "num_padding": 0}, {"part": "b", "num_repeats": 1}]

    assert formatted_rows(rows) == (["part", "tokens", "repeats"], [["a", "0", ""], ["b", "", "1"]])


@pytest.fixture(autouse=True)
def _is_quick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_log, "SECONDS", 1_000.0)


def lines_of(folder: Path, **changes: Any) -> list[str]:
    said: list[str] = []
    dataset = declare_small(folder, **{"exports": ["bin"], **changes})
    build_dataset(dataset, reporter=Lines(said.append))
    said = [re.sub(r", [\d.]+ MB/s", "", line) for line in said]  # of so little text mostly none
    return [re.sub(r"\d+(\.\d+)? (s|kB)\b", r"N \2", line) for line in said]


def test_each_file_has_one_line_and_the_other_stages_one_for_all(tmp_path: Path):
    assert lines_of(tmp_path, exports=["parquet"]) == [
        "tokenizer: 258 ids, N s",
        "tokens a.jsonl: 4 documents, 29 tokens, bytes",
        "tokens b.jsonl: 4 documents, 23 tokens, bytes",
        "tokens sub/c.jsonl: 2 documents, 20 tokens, bytes",
        "split: 3 files: train 72 tokens, N s",
        "sequences: 3 files: train 56 tokens in 7 sequences (100 % full, 5 documents cut, "
        "16 leftover tokens packed at export), N s",
        "export parquet: train 72 tokens in 9 sequences (100 % full, 5 documents cut), N kB, N s",
    ]


def test_of_many_files_a_line_now_and_then_says_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_log, "FILES_SHOWN", 2)
    monkeypatch.setattr(run_log, "SECONDS", 0.0)

    said = [line for line in lines_of(tmp_path) if line.startswith("tokens")]

    assert said[0] == "tokens: 0 of 3 files, 12 %, 4 documents, 25 B"
    assert said[-1] == "tokens: 2 of 3 files, 99 %, 10 documents, 62 B, N s left"


def test_the_pace_counts_done_files_in_full_and_those_under_way_by_their_text(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = iter([0.0, 100.0, *[110.0] * 9])  # workers start for 100 s
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    pace = Pace(100_000_000)

    pace.count(20_000_000, is_new=False)  # there already: it says nothing of the speed
    pace.advance(1, 10_000_000)
    assert str(pace) == "30 %, 1 document, 10.0 MB"
    pace.advance(3, 30_000_000)
    pace.count(20_000_000, is_new=True, text_bytes=40_000_000)  # a compressed file
    pace.advance(1, 20_000_000)

    assert pace.num_bytes == 50_000_000
    assert str(pace) == "50 %, 5 documents, 60.0 MB, 5.0 MB/s, 25 s left"

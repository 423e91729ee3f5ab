import re
from pathlib import Path
from typing import Any

import pytest

from tokflow.pipeline import lines
from tokflow.pipeline.lines import Lines, Pace
from tokflow.pipeline.run import build_dataset
from tokflow_tests.tiny import declare_small


@pytest.fixture(autouse=True)
def _is_quick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "SECONDS", 1_000.0)


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
    monkeypatch.setattr(lines, "FILES_SHOWN", 2)
    monkeypatch.setattr(lines, "SECONDS", 0.0)

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

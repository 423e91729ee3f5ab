import gzip
import re
from pathlib import Path

import pytest

from tokflow.build.dataset import load_dataset
from tokflow.build.pipeline import build_dataset
from tokflow.build.plan import make_plan
from tokflow.cli import progress
from tokflow.cli.progress import Bars, Lines
from tokflow_tests.tiny import declare_small, write_raw


@pytest.fixture(autouse=True)
def _lines_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "SECONDS", 0.0)


def lines_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    build_dataset(declare_small(folder, exports=["bin"]), reporter=Lines())
    text = re.sub(r"\d+\.\d+ (s|MB/s)", r"N \1", capsys.readouterr().out)
    return [line.removeprefix("small: ") for line in text.splitlines()]


def test_each_file_has_one_line_and_the_other_stages_one_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert lines_of(tmp_path, capsys) == [
        "tokenizer: 258 ids, N s",
        "tokens a.jsonl: 4 documents, 29 tokens, N MB/s, bytes",
        "tokens b.jsonl: 4 documents, 23 tokens, N MB/s, bytes",
        "tokens sub/c.jsonl: 2 documents, 20 tokens, N MB/s, bytes",
        "split: 3 files: train 72 tokens, N s",
        "sequences: 3 files: train 7 sequences (100 % full, 5 documents cut), 16 leftover "
        "tokens, packed at export, N s",
        "export bin: train 72 tokens, N s",
    ]


def test_what_was_there_has_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines_of(tmp_path, capsys)
    assert lines_of(tmp_path, capsys) == []

    write_raw(tmp_path, {"d.jsonl": ["new"]})
    assert [line.partition(":")[0] for line in lines_of(tmp_path, capsys)] == [
        "tokens d.jsonl",
        "split",
        "sequences",
        "export bin",
    ]


def test_a_file_that_fails_is_one_of_the_files_of_its_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_raw(tmp_path, {"a.jsonl": ["one"], "b.jsonl": ["two"]})
    (tmp_path / "raw/b.jsonl").write_text("{")

    assert lines_of(tmp_path, capsys)[1:3] == [
        "tokens a.jsonl: 1 document, 4 tokens, N MB/s, bytes",
        "split: 1 file: train 4 tokens, N s",
    ]


def test_of_many_files_a_line_now_and_then_says_how_far_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(progress, "FILES_SHOWN", 2)

    lines = lines_of(tmp_path, capsys)

    assert lines[1:4] == [
        "tokens: file 1 of 3, a.jsonl",
        "tokens: file 2 of 3, b.jsonl",
        "tokens: file 3 of 3, sub/c.jsonl",
    ]
    assert len(lines) == 7


def test_of_many_files_that_are_quick_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(progress, "FILES_SHOWN", 2)
    monkeypatch.setattr(progress, "SECONDS", 1_000.0)

    assert [line for line in lines_of(tmp_path, capsys) if line.startswith("tokens")] == []


def test_bars_hear_of_the_whole_build(config: Path, capsys: pytest.CaptureFixture[str]):
    dataset = load_dataset(config)

    with Bars(make_plan(dataset)) as bars:
        built = build_dataset(dataset, reporter=bars)

    assert built.num_new == 13
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line] == [
        "tokenizer",
        "tokens",
        "split",
        "sequences",
        "export",
    ]
    assert re.search(r"193 B of 193 B +\d+\.\d MB/s", lines[1])


def test_the_bar_of_a_compressed_file_goes_by_the_size_that_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = b'{"text": "it is said again"}\n' * 1_000
    packed = gzip.compress(text)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl.gz").write_bytes(packed)
    plan = make_plan(declare_small(tmp_path, raw={"files": "raw/*.gz"}))

    assert progress.raw_per_text(plan) == 1.0  # a small file is not asked
    monkeypatch.setattr(progress, "LARGE_BYTES", 1)
    assert progress.raw_per_text(plan) == len(packed) / len(text)

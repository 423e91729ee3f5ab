import gzip
from pathlib import Path

import pytest

from tokflow.cli import progress
from tokflow.cli.progress import Bars
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.tiny import declare_small, load_dataset


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
    assert "193 B of 193 B" in lines[1]


def test_the_bar_of_a_compressed_file_takes_its_text_for_four_times_as_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "it is said again"}\n'))
    plan = make_plan(declare_small(tmp_path, raw={"files": "raw/*.gz"}))

    assert progress.raw_per_text(plan) == 1.0  # a small file is not asked
    monkeypatch.setattr(progress, "LARGE_BYTES", 1)
    assert progress.raw_per_text(plan) == 0.25

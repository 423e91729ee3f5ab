import re
from pathlib import Path

import pytest

from tokflow.build.dataset import load_dataset
from tokflow.build.pipeline import build_dataset
from tokflow.build.plan import make_plan
from tokflow.cli.progress import Bars


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

"""The training of examples/train lowers its loss, and after a resume its losses are the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples.running import prepare
from tokflow.pipeline.declared import load_datasets
from tokflow_tests.tiny import build

pytestmark = pytest.mark.interop


def test_a_training_that_is_resumed_has_the_losses_of_one_that_is_not(tmp_path: Path):
    folder = tmp_path / "train"
    for dataset in load_datasets(prepare("train", folder)):
        build(dataset)

    def trained_to(step: int) -> list[str]:
        command = [sys.executable, "train.py", str(step)]
        return subprocess.check_output(command, cwd=folder, text=True).splitlines()

    resumed = trained_to(30) + trained_to(60)
    for checkpoint in folder.glob("*.pt"):
        checkpoint.unlink()
    whole = trained_to(60)

    assert sorted(resumed) == sorted(whole)
    for name in ("bin", "parquet", "mixture"):
        first, *_, last = (float(of.split()[-1]) for of in whole if of.startswith(name))
        assert last < first - 1.5

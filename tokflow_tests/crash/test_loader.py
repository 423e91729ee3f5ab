"""A training that is killed a hundred times has had every sample once, in the order of its seed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tokflow.loaders.rows import open_rows
from tokflow_tests.tiny import build, declare

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
SEED = os.environ.get("SEED", "1")
KILLS = 100
"""A trial takes 20 ms."""


def test_a_killed_training_goes_on_with_the_samples_in_their_order(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": [f"document {n}" for n in range(700)]}, exports=["bin"])
    build(dataset)
    export = dataset.folder / "exports" / "bin"
    module = "tokflow_tests.crash.killed_training"
    command = [sys.executable, "-m", module, export, tmp_path, KILLS, SEED]
    subprocess.run([str(one) for one in command], cwd=ROOT, check=True, timeout=300)

    num_samples = json.loads((tmp_path / "state.json").read_text())["samples"]
    found = np.fromfile(tmp_path / "rows.log", dtype=np.int64)[:num_samples]
    rows = open_rows(export, sequence_length=8)
    assert num_samples > 5 * len(rows)
    assert found.tolist() == rows.epochs(1).at(np.arange(num_samples)).tolist()

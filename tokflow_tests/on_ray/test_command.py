"""`tokflow run --pool ray`: what it prints, and the shares of a dataset."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokflow_tests.object_store import ObjectStore
from tokflow_tests.on_ray.conftest import ROOT, Nodes
from tokflow_tests.tiny import write_raw, write_yaml

COMMAND = (
    "from tokflow.cli import main; from tokflow.pipeline import tasks\n"
    "tasks.SMALL_BYTES = 0; main()"
)
"""Of which no dataset is too small for a cluster."""


@pytest.fixture
def yaml(nodes: Nodes, object_store: ObjectStore, tmp_path: Path) -> Path:
    write_raw(tmp_path, {f"{number}.jsonl": ["one", "two"] for number in range(4)})
    return write_yaml(tmp_path, store=f"{object_store.url}/store")


def run(yaml: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", COMMAND, "run", "--config", str(yaml), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOKFLOW_POOL": "ray"}
    return subprocess.run(
        command, cwd=yaml.parent, env=environment, capture_output=True, text=True, check=False
    )


def test_a_run_on_the_cluster_prints_its_json_and_nothing_else(yaml: Path, nodes: Nodes) -> None:
    of_share = run(yaml, "--shard", "1/2")
    of_all = run(yaml, "--json")
    again = run(yaml, "--pool", "local")

    assert of_share.returncode == 0, of_share.stderr
    assert of_all.returncode == 0, of_all.stderr
    [document] = json.loads(of_all.stdout)["datasets"]
    assert of_all.stderr == ""
    assert document["failed"] == []
    assert 0 < document["num_new"] < len(document["outputs"])
    assert "nothing to do" in again.stdout
    made_on = [cache for cache in nodes.caches if [*cache.rglob("tokens.bin")]]
    assert made_on

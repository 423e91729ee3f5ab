"""Datasets built on a cluster of Ray, in a store at a URL: the bytes of a build on one machine."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tokflow.pipeline import tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.results import Reporter, StageBegun, StageResult
from tokflow.pipeline.run import build_dataset
from tokflow.store.manifest import FileEntry, checksum, folder_of_manifest, read_manifest
from tokflow.store.requests import S3Client
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.on_ray.conftest import ROOT, Nodes
from tokflow_tests.tiny import declare, write_raw, write_yaml

NUM_FILES = 40
NUM_BYTES = 60_000_000


@pytest.fixture(autouse=True)
def _no_dataset_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(tasks, "MADE_TOGETHER", 1)


def sentences(num_bytes: int) -> list[str]:
    """Return texts of some kB, of random words, with so many bytes together."""
    choose = random.Random(5)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(choose.choices(letters, k=choose.randint(1, 9))) for _ in range(5_000)]
    texts: list[str] = []
    while num_bytes > 0:
        texts.append(" ".join(choose.choices(words, k=choose.randint(1, 2_000))))
        num_bytes -= len(texts[-1])
    return texts


class Disturbed(Reporter):
    """Kills a node and adds another while tokens are made."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.stages: list[str] = []
        self.counts: Counter[str] = Counter()
        self.num_bytes = 0

    def begun(self, begun: StageBegun) -> None:
        self.stages.append(begun.stage)

    def made(self, made: StageResult) -> None:
        self.counts[made.output.stage] += 1
        if self.counts["tokens"] == NUM_FILES // 4 and made.output.stage == "tokens":
            self.nodes.kill()
            self.nodes.add()

    def advance(self, num_documents: int, num_bytes: int) -> None:
        self.num_bytes += num_bytes


def expected_objects(dataset: Dataset) -> dict[str, FileEntry | None]:
    """Return the keys that a dataset of this disk has at a URL, with the digests of those that no
    time is in."""
    objects: dict[str, FileEntry | None] = {}
    store = dataset.folder.parent
    for path in store.rglob("_tokflow/manifest.json"):
        folder = folder_of_manifest(path).relative_to(store).as_posix()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        objects[f"store/{folder.replace('/', '/manifests/', 1)}.json"] = checksum(path)
        objects[f"store/{folder}/{digest}/_tokflow/run.json"] = None
        for name, entry in read_manifest(folder_of_manifest(path)).files.items():
            objects[f"store/{folder}/{digest}/{name}"] = entry
    for path in store.rglob("latest"):
        objects[f"store/{dataset.name}/manifests/exports/{path.parent.name}/latest"] = None
    return objects


def test_a_node_that_is_killed_and_one_that_comes_change_no_byte(
    nodes: Nodes, object_store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = sentences(NUM_BYTES)
    files = {f"{number:02d}.jsonl": texts[number::NUM_FILES] for number in range(NUM_FILES)}
    how: dict[str, Any] = {
        "tokenizer": {"kind": "trained", "vocab_size": 2_000, "max_characters": 20_000},
        "packing": {"sequence_length": 1024},
        "near_duplicates": {"threshold": 0.7},
        "select": "num_chars <= quantile(0.9) and not near_duplicate",
        "strata": {"long": "num_chars > quantile(0.5)", "rest": True},
        "exports": ["bin", "parquet"],
    }
    reporter = Disturbed(nodes)

    there = declare(tmp_path, files, store=f"{object_store.url}/store", **how)
    built = build_dataset(there, pool="ray", reporter=reporter)

    assert not built.failed, built.failed[0].error
    assert capsys.readouterr().out == ""  # Ray tells of the node on stderr
    here = declare(tmp_path, store="here", **how)
    assert not build_dataset(here, jobs=1).failed
    expected, there_now = expected_objects(here), S3Client(object_store.url)
    assert object_store.keys() == sorted(expected)
    for key, entry in expected.items():
        data = there_now.read(key)
        if entry is not None:
            assert hashlib.sha256(data).hexdigest() == entry.sha256, key
    assert "Uploads" not in there_now.ask("list_multipart_uploads")
    alive = [path for cache in nodes.caches for path in cache.rglob("*.tmp")]
    assert alive == []
    assert reporter.counts["tokens"] == NUM_FILES
    assert all(made.run for made in built.made)
    tokens = [made for made in built.made if made.output.stage == "tokens"]
    assert sum(made.manifest.counts["num_documents"] for made in tokens) == len(texts)
    assert reporter.num_bytes == sum(made.manifest.counts["num_bytes"] for made in tokens)


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

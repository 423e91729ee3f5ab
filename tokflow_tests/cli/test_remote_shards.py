"""Shares of a dataset built at once by machines that have nothing in common but the store."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import build, declare_small

RAW = {f"{number:02}.jsonl": [f"text {number}", "x" * number] for number in range(10)}


def put_raw_files(there: ObjectStore, folder: Path) -> None:
    """Put the same files into the bucket and on this disk."""
    (folder / "raw").mkdir()
    for key, texts in RAW.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        (folder / "raw" / key).write_bytes(lines)
        there.put(f"raw/{key}", lines)


def start(machine: str, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start `tokflow run` on another machine: in a process with a cache of its own."""
    command = ["run", "--config", str(folder / "dataset.yaml"), "--json", "--jobs", "1"]
    return subprocess.Popen(
        [sys.executable, "-m", "tokflow", *command, *arguments],
        env={**os.environ, "TOKFLOW_CACHE": str(folder / machine)},
        stdout=subprocess.PIPE,
        text=True,
    )


def printed_by(process: "subprocess.Popen[str]") -> dict[str, Any]:
    with process:
        [dataset] = json.loads(process.communicate()[0])["datasets"]
    return dataset


def files_of(dataset: Dataset) -> dict[tuple[str, str, str], str]:
    """Return the sha256 of each file of the outputs by stage, name and file."""
    return {
        (output.stage, output.name, name): entry.sha256
        for output in graph_of(dataset).outputs()
        for name, entry in output.manifest().files.items()
    }


@pytest.mark.slow
def test_three_machines_build_each_output_once_and_a_whole_run_makes_the_rest(
    object_store: ObjectStore, tmp_path: Path
):
    put_raw_files(object_store, tmp_path)
    raw = {"files": f"{object_store.url}/raw/*.jsonl"}
    how = {
        "near_duplicates": {"threshold": 0.5},
        "select": "num_tokens > 2 and not near_duplicate",
        "strata": {"long": "num_tokens > 9", "rest": True},
    }
    there = declare_small(tmp_path, raw=raw, store=f"{object_store.url}/store", **how)

    shards = [start(f"machine {nth}", tmp_path, "--shard", f"{nth}/3") for nth in (1, 2, 3)]
    of_shards = [printed_by(shard) for shard in shards]
    whole = printed_by(start("machine 4", tmp_path))

    puts = Counter(each.key for each in object_store.requests if each.kind == "PUT")
    twice = {key for key, num in puts.items() if num > 1 and key.startswith("store/")}
    new = [of["stage"] for of in whole["outputs"] if of["is_new"]]
    assert [of["num_files"] for of in of_shards] == [4, 3, 3]
    stages = {key.removeprefix("store/small/").removeprefix("manifests/") for key in twice}
    assert {key.partition("/")[0] for key in stages} <= {"tokenizer"}
    of_dataset = {"near_duplicates": 1, "export": 3}
    after_pairs = dict.fromkeys(("selection", "split", "sequences"), len(RAW))
    assert Counter(new) == of_dataset | after_pairs
    raw = {"files": "raw/*.jsonl"}
    here = declare_small(tmp_path, raw=raw, store="here", **how)
    build(here)
    assert files_of(there) == files_of(here)

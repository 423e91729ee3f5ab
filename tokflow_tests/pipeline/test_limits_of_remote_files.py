"""Remote files of which a limit has only the beginning read."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.gc import find_garbage
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.raw.fetch import LEAST_BYTES
from tokflow_tests.cli.commands import run
from tokflow_tests.outputs import content, problems_of
from tokflow_tests.raw.fetching import Server, serving
from tokflow_tests.tiny import TINY, build, ids

TEXTS = [f"{nth:05d} {'text ' * 200}" for nth in range(4000)]
"""4 MB, of lines of 1 kB."""


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    lines = (json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
    with serving(Server(name="a.jsonl", content=b"".join(lines))) as server:
        yield server


def limited(folder: Path, server: Server, num_documents: int | None, **fields: Any) -> Dataset:
    documents = {"limit": {"documents": num_documents}} if num_documents else {}
    fields = {"raw": {"files": server.url}, "exports": ["bin"], "documents": documents, **fields}
    return make_dataset({**TINY, **fields}, base=folder, where="test")


def bin_of(dataset: Dataset) -> bytes:
    return (dataset.folder / "exports/bin/latest/train.bin").read_bytes()


def tokens_of(num_documents: int) -> bytes:
    return np.array(ids(*TEXTS[:num_documents]), dtype="<u2").tobytes()


def test_the_tokens_are_those_of_the_file_and_every_command_knows_it(
    server: Server, tmp_path: Path
):
    dataset = limited(tmp_path, server, 100)

    build(dataset)

    assert bin_of(dataset) == tokens_of(100)
    assert server.num_sent == LEAST_BYTES
    manifest = graph_of(dataset).tokens("a.jsonl").manifest()
    version = manifest.details["raw_version"]
    assert (version["etag"], version["num_bytes"]) == ('"v1"', len(server.content))
    hashed = hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()
    assert manifest.recipe.parents["raw"] == hashed
    assert make_plan(dataset).is_up_to_date
    assert problems_of(dataset) == []
    [origin] = trace_tokens(dataset.folder / "exports/bin/latest", part="train", start=2, stop=5)
    assert (origin.raw_file, origin.row, origin.char_start) == ("a.jsonl", 0, 2)
    assert find_garbage(dataset, keep=1) == {}
    shown = run("inspect", graph_of(dataset).tokens("a.jsonl").folder).stdout
    assert 'raw file     4.1 MB, known by its version: "v1"' in shown
    assert server.num_sent == LEAST_BYTES


def test_a_second_run_fetches_nothing_and_a_raised_limit_the_rest(server: Server, tmp_path: Path):
    build(limited(tmp_path, server, 100))
    before = content(tmp_path / "store")
    build(limited(tmp_path, server, 100))
    assert content(tmp_path / "store") == before
    assert server.num_sent == LEAST_BYTES

    build(limited(tmp_path, server, 2000))

    assert bin_of(limited(tmp_path, server, 2000)) == tokens_of(2000)
    starts = [int(each[10:].split("-")[0]) for each in server.requests if each[:3] == "GET"]
    assert starts == [0, LEAST_BYTES, 2 * LEAST_BYTES]


def test_without_the_limit_the_file_is_fetched_whole(server: Server, tmp_path: Path):
    build(limited(tmp_path, server, 100))

    build(dataset := limited(tmp_path, server, None))

    assert bin_of(dataset) == tokens_of(4000)
    raw = graph_of(dataset).raw_file("a.jsonl")
    assert raw.sha256 == hashlib.sha256(server.content).hexdigest()
    assert server.num_sent == len(server.content)  # the beginning was there
    assert problems_of(dataset) == []
    assert find_garbage(dataset, keep=9) == {}


def test_another_version_is_built_anew_and_never_mixed(server: Server, tmp_path: Path):
    build(limited(tmp_path, server, 100))
    new = server.content.replace(b"text ", b"test ")
    server.after_get = [new]

    [failed] = build_dataset(limited(tmp_path, server, 3500)).failed
    build(dataset := limited(tmp_path, server, 3500))

    assert "expected the version that was there when the run began" in str(failed.error)
    assert bin_of(dataset) == tokens_of(3500).replace(b"x\0t\0", b"s\0t\0")
    assert problems_of(dataset) == []
    [blocks] = find_garbage(dataset, keep=9)
    used = graph_of(dataset).raw_file("a.jsonl").path.parent
    assert {blocks, used} == set((dataset.folder / "raw/a.jsonl").glob(".blocks-*"))


def test_files_behind_the_limit_of_a_dataset_are_asked_nothing(server: Server, tmp_path: Path):
    raw = {"files": [f"{server.url[:-7]}{nth}/a.jsonl" for nth in range(3)]}
    limit = {"documents": 4100, "scope": "dataset"}

    build(dataset := limited(tmp_path, server, None, raw=raw, documents={"limit": limit}))

    assert bin_of(dataset) == tokens_of(4000) + tokens_of(100)
    assert len(server.content) < server.num_sent <= len(server.content) + LEAST_BYTES
    assert server.requests.count("HEAD") == 2
    assert problems_of(dataset) == []
    assert find_garbage(dataset, keep=1) == {}

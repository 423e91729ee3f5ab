"""Raw files of web servers and of the hub, of a dataset whose store is remote."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.hub import Hub
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import problems_of
from tokflow_tests.raw.fetching import Server, serving
from tokflow_tests.tiny import TINY, build

LINES = b"".join(
    json.dumps({"text": f"text {nth} {'x' * 1000}"}).encode() + b"\n" for nth in range(3000)
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("tokflow.raw.remote.FIRST_WAIT_SECONDS", 0.01)
    with serving(Server(name="a.jsonl", content=LINES)) as server:
        yield server


def declared(there: ObjectStore, folder: Path, url: str) -> Dataset:
    fields: dict[str, Any] = {"raw": {"files": url}, "exports": ["bin"], "store": f"{there.url}/s"}
    return make_dataset({**TINY, **fields}, base=folder, where="test")


def copies_in(there: ObjectStore) -> list[str]:
    keys = there.keys()
    return [key for key in keys if "/tiny/raw/" in key and key.endswith(".jsonl")]


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_file_of_a_server_that_tells_versions_is_fetched_once_and_not_copied(
    has_ranges: bool, server: Server, object_store: ObjectStore, tmp_path: Path
):
    server.has_ranges = has_ranges
    dataset = declared(object_store, tmp_path, server.url)

    build(dataset)

    # Without ranges an answer is begun in vain, of a small file as far as sockets hold it.
    assert server.num_sent <= (1.4 if has_ranges else 3) * len(LINES)
    assert not copies_in(object_store)
    assert graph_of(dataset).tokens("a.jsonl").manifest().counts["num_documents"] == 3000
    assert problems_of(dataset) == []


def test_an_empty_machine_asks_the_server_which_version_is_there(
    server: Server, object_store: ObjectStore, tmp_path: Path
):
    build(declared(object_store, tmp_path, server.url))
    shutil.rmtree(tmp_path / "cache")
    num_sent = server.num_sent

    unchanged = make_plan(declared(object_store, tmp_path, server.url))
    shutil.rmtree(tmp_path / "cache")
    server.etag = '"v2"'
    changed = make_plan(declared(object_store, tmp_path, server.url))

    assert unchanged.is_up_to_date
    assert [of.reason for of in changed.missing if of.stage == "tokens"] == [
        "file changed (a.jsonl)"
    ]
    assert server.num_sent == num_sent


def test_bytes_of_the_hub_that_are_not_those_of_the_commit_become_no_tokens(
    hub: Hub, object_store: ObjectStore, tmp_path: Path
):
    hub.push("org/name", {"train.txt": (b"x" * 100_000 + b"\n") * 101})
    dataset = declared(object_store, tmp_path, "hf://datasets/org/name")
    hub.is_lying = True

    [failed] = build_dataset(dataset).failed

    assert "found sha256 " in str(failed.error)
    keys = object_store.keys()
    assert not [key for key in keys if "/manifests/tokens/" in key]

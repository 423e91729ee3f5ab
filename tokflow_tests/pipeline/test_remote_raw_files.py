"""Raw files of buckets, of web servers and of the hub, of a dataset whose store is remote."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify import verify_dataset
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.hub import Hub
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import digests_of, problems_of
from tokflow_tests.raw.fetching import Server, serving
from tokflow_tests.tiny import SMALL, TEXTS, TINY, build, write_raw


def put(there: ObjectStore, files: dict[str, list[str]]) -> None:
    for key, texts in files.items():
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        there.put(f"raw/{key}", "".join(lines).encode())


def declared(there: ObjectStore, folder: Path, **attributes: Any) -> Dataset:
    raw = {"files": f"{there.url}/raw/**/*.jsonl"}
    fields = {**SMALL, "raw": raw, "store": f"{there.url}/store", **attributes}
    return make_dataset(fields, base=folder, where="test")


@pytest.mark.parametrize("raw", [{}, {"group": 2}])
def test_the_outputs_are_those_of_raw_files_on_this_disk(
    raw: dict[str, Any], object_store: ObjectStore, tmp_path: Path
):
    put(object_store, TEXTS)
    write_raw(tmp_path, TEXTS)
    for path in (tmp_path / "raw").rglob("*.jsonl"):  # whose JSON is written in another way
        key = path.relative_to(tmp_path / "raw").as_posix()
        path.write_bytes(object_store.contents()[f"raw/{key}"])
    here = {**SMALL, "raw": {"files": "raw/**/*.jsonl", **raw}}
    local = make_dataset(here, base=tmp_path, where="test")
    there = declared(
        object_store, tmp_path, raw={"files": f"{object_store.url}/raw/**/*.jsonl", **raw}
    )

    build(local)
    with object_store.counted() as count:
        build(there)

    assert digests_of(there) == digests_of(local)
    assert count["GET"] <= len(TEXTS) + 1
    assert not list(there.folder.glob("raw"))


def test_an_empty_machine_knows_what_is_new_and_changed_without_reading_it(
    object_store: ObjectStore, tmp_path: Path
):
    put(object_store, TEXTS)
    build(declared(object_store, tmp_path))
    put(object_store, {"b.jsonl": ["another"], "d.jsonl": ["new"]})
    shutil.rmtree(tmp_path / "cache")
    before = len(object_store.requests)

    plan = make_plan(declared(object_store, tmp_path))

    tokens = {of.name: of.reason for of in plan.missing if of.stage == "tokens"}
    assert tokens == {"b.jsonl": "file changed (b.jsonl)", "d.jsonl": "missing"}
    assert plan.num_bytes == len('{"text": "another"}\n{"text": "new"}\n')
    raw = [each for each in object_store.requests[before:] if each.key.startswith("raw/")]
    assert [each.kind for each in raw] == ["LIST"]


def test_verify_and_trace_go_back_to_the_version_of_the_raw_file_at_its_url(
    object_store: ObjectStore, tmp_path: Path
):
    put(object_store, TEXTS)
    dataset = declared(object_store, tmp_path)
    build(dataset)

    found = list(verify_dataset(dataset))
    export = graph_of(dataset).output("export", variant=dataset.exports[0].name).open()
    [origin] = trace_tokens(export, part="train", start=0, stop=3)

    assert [problem for each in found for problem in each.problems] == []
    assert "its raw file was read" in {note for each in found for note in each.notes}
    assert (origin.raw_file, origin.row, origin.text) == ("a.jsonl", 0, "one")
    details = graph_of(dataset).tokens("a.jsonl").manifest().details["raw_version"]
    content = object_store.contents()["raw/a.jsonl"]
    known_by = hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest()
    assert (details["etag"], details["sha256"]) == known_by


LINES = b"".join(
    json.dumps({"text": f"text {nth} {'x' * 1000}"}).encode() + b"\n" for nth in range(3000)
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("tokflow.raw.remote_version.FIRST_WAIT_SECONDS", 0.01)
    with serving(Server(name="a.jsonl", content=LINES)) as server:
        yield server


def declared_at(there: ObjectStore, folder: Path, url: str) -> Dataset:
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
    dataset = declared_at(object_store, tmp_path, server.url)

    build(dataset)

    # Without ranges an answer is begun in vain, of a small file as far as sockets hold it.
    assert server.num_sent <= (1.4 if has_ranges else 3) * len(LINES)
    assert not copies_in(object_store)
    assert graph_of(dataset).tokens("a.jsonl").manifest().counts["num_documents"] == 3000
    assert problems_of(dataset) == []


def test_an_empty_machine_asks_the_server_which_version_is_there(
    server: Server, object_store: ObjectStore, tmp_path: Path
):
    build(declared_at(object_store, tmp_path, server.url))
    shutil.rmtree(tmp_path / "cache")
    num_sent = server.num_sent

    unchanged = make_plan(declared_at(object_store, tmp_path, server.url))
    shutil.rmtree(tmp_path / "cache")
    server.etag = '"v2"'
    changed = make_plan(declared_at(object_store, tmp_path, server.url))

    assert unchanged.is_up_to_date
    assert [of.reason for of in changed.missing if of.stage == "tokens"] == [
        "file changed (a.jsonl)"
    ]
    assert server.num_sent == num_sent


def test_bytes_of_the_hub_that_are_not_those_of_the_commit_become_no_tokens(
    hub: Hub, object_store: ObjectStore, tmp_path: Path
):
    hub.push("org/name", {"train.txt": (b"x" * 100_000 + b"\n") * 101})
    dataset = declared_at(object_store, tmp_path, "hf://datasets/org/name")
    hub.is_lying = True

    [failed] = build_dataset(dataset).failed

    assert "found sha256 " in str(failed.error)
    keys = object_store.keys()
    assert not [key for key in keys if "/manifests/tokens/" in key]

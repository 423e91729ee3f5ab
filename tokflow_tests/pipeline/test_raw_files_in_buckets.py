"""Raw files at an object store, of a dataset whose store is there, too."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify import verify_dataset
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import digests_of
from tokflow_tests.tiny import SMALL, TEXTS, build, write_raw


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

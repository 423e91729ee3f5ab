"""Partitions of several small files: `raw.group`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.inspection import inspect_output
from tokflow.audit.trace import trace_tokens
from tokflow.documents import ranges
from tokflow.errors import BadDocumentError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.tokens import shard_files
from tokflow_tests.outputs import content, edit_manifest, index_of, problems_of
from tokflow_tests.tiny import declare, write_raw

FILES = {f"{number:02d}.jsonl": [f"text {number}", "", "ä" * number] for number in range(7)}

KEYS = ["group/00.jsonl", "group/02.jsonl", "group/04.jsonl", "group/06.jsonl"]
"""Of groups of two."""

SPLIT = {
    "scope": "dataset",
    "boundary": "character",
    "parts": {"train": {"start": 0, "characters": 35}, "rest": {"start": 35}},
}


@pytest.fixture(autouse=True)
def _two_ranges_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "WHOLE_RANGES", 1)


def grouped(folder: Path, group: int | str | None = 2, **attributes: Any) -> Dataset:
    raw = {"files": "raw/*.jsonl", "group": group}
    files = attributes.pop("files", FILES)
    return declare(folder, files, **{"raw": raw, "exports": ["bin", "olmo"], **attributes})


def built(dataset: Dataset) -> BuildGraph:
    result = build_dataset(dataset, jobs=1)
    assert result.failed == ()
    return graph_of(dataset)


def export_files(graph: BuildGraph, name: str) -> dict[str, bytes]:
    files = content(graph.named("export", name).folder)
    return {path: data for path, data in files.items() if path != "_tokflow/manifest.json"}


@pytest.mark.parametrize(("range_bytes", "split"), [(100, SPLIT), (10**9, {})])
def test_streams_and_their_index_are_those_of_single_files(
    range_bytes: int, split: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 10**9)
    expected = built(grouped(tmp_path / "single", None, split=split))
    monkeypatch.setattr(ranges, "RANGE_BYTES", range_bytes)

    graph = built(grouped(tmp_path / "groups", 4, split=split))

    assert len(graph.open_tokens("group/00.jsonl").segments) == (2 if range_bytes == 100 else 1)
    for name in ("bin", "olmo"):
        assert export_files(graph, name) == export_files(expected, name)
    rows = index_of(graph.named("export", "bin").folder, "train")
    assert {"00.jsonl", "03.jsonl"} <= {row["raw_file"] for row in rows}


def test_verify_compares_the_rows_of_each_file(tmp_path: Path):
    dataset = grouped(tmp_path)
    shard = built(dataset).open_tokens(KEYS[0])

    def shift(manifest: dict[str, Any]) -> None:
        manifest["details"]["files"][0]["num_rows"] -= 1
        manifest["details"]["files"][1]["num_rows"] += 1

    edit_manifest(shard.folder, shift)

    problems = problems_of(dataset)
    assert f"{shard.folder}: expected 3 rows of 00.jsonl, found 2" in problems


def test_files_added_at_the_end_change_the_last_group_and_one_that_is_gone_its_own(tmp_path: Path):
    dataset = grouped(tmp_path)
    built(dataset)
    write_raw(tmp_path, {"07.jsonl": ["new"], "08.jsonl": ["newer"]})

    plan = make_plan(dataset)

    changed = [of.name for of in plan.missing if of.stage == "tokens"]
    assert changed == ["group/06.jsonl", "group/08.jsonl"]
    built(dataset)
    assert make_plan(dataset).is_up_to_date
    (tmp_path / "raw" / "03.jsonl").unlink()
    assert "group/02.jsonl" in [of.name for of in make_plan(dataset).missing]
    graph = built(dataset)
    assert [file.key for file in graph.raw("group/02.jsonl").files] == ["02.jsonl", "04.jsonl"]


def test_another_order_of_the_same_contents_is_another_group(tmp_path: Path):
    dataset = grouped(tmp_path, files={"a.jsonl": ["x"], "b.jsonl": ["y"]})
    built(dataset)
    write_raw(tmp_path, {"a.jsonl": ["y"], "b.jsonl": ["x"]})

    assert not make_plan(dataset).is_up_to_date


def test_a_token_of_a_group_leads_to_its_file_and_row(tmp_path: Path):
    dataset = grouped(tmp_path, 3)
    graph = built(dataset)
    folder = graph.named("export", "bin").folder
    row = next(of for of in index_of(folder, "train") if of["raw_file"] == "05.jsonl")

    [origin] = trace_tokens(folder, part="train", start=row["position"], stop=row["position"] + 3)

    assert (origin.raw_file, origin.row, origin.text) == ("05.jsonl", 0, "tex")
    shown = inspect_output(graph.tokens("group/03.jsonl").folder, num_sequences=1).excerpts
    documents = [segment.document for excerpt in shown for segment in excerpt.segments]
    assert documents[:4] == ["03.jsonl:0", "03.jsonl:1", "03.jsonl:2", "04.jsonl:0"]
    assert problems_of(dataset) == []
    copy = shutil.copytree(folder, tmp_path / "copy")
    [origin] = trace_tokens(copy, part="train", start=0, stop=1)
    assert (origin.raw_file, origin.row) == ("00.jsonl", 0)


@pytest.mark.parametrize("range_bytes", [100, 10**9])
def test_rejects_and_errors_name_the_file_and_its_row(
    range_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ranges, "RANGE_BYTES", range_bytes)
    documents = {"on_bad_document": "reject", "max_rejects": 1}
    dataset = grouped(tmp_path, 4, documents=documents)
    path = tmp_path / "raw" / "02.jsonl"
    path.write_text('{"text": "a"}\n{"txet": "b"}\n{"text": "c"}\n')

    shard = built(dataset).open_tokens("group/00.jsonl")

    [reject] = map(json.loads, (shard.folder / "rejects.jsonl").read_text().splitlines())
    assert (reject["raw_file"], reject["row"], reject["line"]) == ("02.jsonl", 1, 2)
    assert [file["num_rows"] for file in shard.manifest.details["files"]] == [3, 3, 3, 3]
    assert shard.documents()["row"].to_pylist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert problems_of(dataset) == []
    (tmp_path / "raw" / "03.jsonl").write_text('{"text": "a"}\n{"txet": "b"}\n')
    [failed] = build_dataset(dataset, jobs=1).failed
    assert isinstance(failed.error, BadDocumentError)
    assert (failed.error.path.name, failed.error.row) == ("03.jsonl", 1)


def test_parts_of_files_have_groups_of_their_own(tmp_path: Path):
    split = {"parts": {"train": {"files": "0[0-4]*"}, "val": {"files": "0[5-9]*"}}}
    graph = built(grouped(tmp_path, 4, split=split))

    assert list(graph.partitions) == ["group/00.jsonl", "group/04.jsonl", "group/05.jsonl"]
    folder = graph.named("export", "bin").folder
    assert {row["raw_file"] for row in index_of(folder, "val")} == {"05.jsonl", "06.jsonl"}

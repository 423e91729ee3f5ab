"""Failures of earlier builds, as a plan tells them."""

import shutil
from pathlib import Path
from typing import Any

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.failures import PastFailure, note_failures, read_failures
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.raw.fetching import Server, serving
from tokflow_tests.tiny import declare


def bad(folder: Path, **attributes: Any) -> Dataset:
    """Return a dataset of which b.jsonl cannot be read."""
    dataset = declare(folder, {"a.jsonl": ["one"], "b.jsonl": ["two"]}, **attributes)
    (folder / "raw/b.jsonl").write_text("{broken\n")
    return dataset


def told(dataset: Dataset) -> dict[str, PastFailure]:
    """Return the failures that a plan tells, by output."""
    planned = make_plan(dataset).planned
    return {f"{of.stage} {of.name}": of.failure for of in planned if of.failure is not None}


def test_a_failure_is_told_as_long_as_the_file_and_what_decides_are_the_same(tmp_path: Path):
    dataset = bad(tmp_path)
    build_dataset(dataset)
    build_dataset(dataset, partitions=["a.jsonl"])

    for kept in ({}, {"packing": {"sequence_length": 2}}):
        assert list(told(declare(tmp_path, **kept))) == ["tokens b.jsonl"]
    for documents in ({"on_bad_document": "reject"}, {"text": "other"}):
        assert told(declare(tmp_path, documents=documents)) == {}
    (tmp_path / "raw/b.jsonl").write_text('{"text": "mended"}\n')
    assert told(dataset) == {}


def test_what_succeeds_leaves_no_file_behind_even_if_it_is_deleted_again(tmp_path: Path):
    dataset = bad(tmp_path)
    build_dataset(dataset)
    assert (dataset.folder / "failures.json").is_file()
    (tmp_path / "raw/b.jsonl").write_text('{"text": "mended"}\n')
    build_dataset(dataset)

    assert not (dataset.folder / "failures.json").exists()

    shutil.rmtree(dataset.folder / "tokens")

    assert told(dataset) == {}


def test_a_failure_that_passed_by_itself_or_whose_export_is_gone_is_forgotten(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["one"]}, exports=["bin", "npy"])
    in_the_way = [dataset.folder / "tokens/a.jsonl", dataset.folder / "exports/npy"]
    for path, output in zip(in_the_way, ("tokens a.jsonl", "export npy"), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        build_dataset(dataset)
        assert list(told(dataset)) == [output]
        if output == "tokens a.jsonl":
            path.unlink()

    build_dataset(declare(tmp_path, exports=["bin"]))

    assert not (dataset.folder / "failures.json").exists()


def test_a_failure_of_a_file_that_is_gone_is_forgotten(tmp_path: Path):
    dataset = bad(tmp_path)
    build_dataset(dataset)
    (tmp_path / "raw/b.jsonl").unlink()

    build_dataset(dataset)

    assert read_failures(dataset.folder) == {}


def test_a_failure_of_an_export_that_a_later_build_did_not_try_is_still_told(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["one"]}, exports=["npy"])
    in_the_way = dataset.folder / "exports/npy"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    build_dataset(dataset)

    graph = BuildGraph(dataset)
    note_failures(graph, [], graph.partitions)  # of a build of the tokens alone

    assert list(told(dataset)) == ["export npy"]


def test_a_file_that_could_not_be_fetched_is_told_of_and_a_plan_asks_no_server(tmp_path: Path):
    with serving(Server(name="b.jsonl", statuses=[404] * 9)) as server:
        raw = {"files": [server.url, "raw/a.jsonl"]}
        dataset = declare(tmp_path, {"a.jsonl": ["one"]}, raw=raw, exports=["bin"])
        [failed] = build_dataset(dataset).failed
        num_asked = len(server.requests)
        found = told(dataset)

    [(output, failure)] = found.items()
    assert output == f"tokens {failed.name}"
    assert failure.message == str(failed.error)
    assert len(server.requests) == num_asked


def test_a_file_of_failures_that_cannot_be_read_tells_nothing(tmp_path: Path):
    dataset = bad(tmp_path)
    build_dataset(dataset)
    (dataset.folder / "failures.json").write_text('{"a": 1')

    assert told(dataset) == {}

"""A limit of the whole dataset takes files one after another, until it is reached."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.raw_files import FileShare, in_taking_order
from tokflow.pipeline.run import build_dataset
from tokflow.raw.hashes import hash_file
from tokflow.store.listed_files import Stamp
from tokflow_tests.outputs import content, problems_of, token_lists
from tokflow_tests.tiny import build, declare, ids, write_raw, write_texts

FILES = {
    "a.jsonl": ["a", "aa", ""],
    "b.jsonl": ["b", "bb"],
    "c.jsonl": ["c", "cc"],
    "d.jsonl": ["d"],
}


def limited(folder: Path, files: dict[str, list[str]] | None = None, **limit: Any) -> Dataset:
    fields = {
        name: limit.pop(name) for name in ("shuffle", "split", "exports", "raw") if name in limit
    }
    fields = {"exports": ["bin", "parquet"], **fields}
    documents = {"limit": {"scope": "dataset", **limit}}
    return declare(folder, files or {}, documents=documents, **fields)


def texts_of(dataset: Dataset) -> dict[str, list[str]]:
    """Return the texts of each file that is built."""
    graph = graph_of(dataset)
    shards = {key: token_lists(graph.open_tokens(key)) for key in graph.partitions}
    return {
        key: [bytes(ids[:-1]).decode() for ids in documents] for key, documents in shards.items()
    }


@pytest.mark.parametrize(
    ("limit", "taken"),
    [
        ({"documents": 2}, {"a.jsonl": ["a", "aa"]}),
        ({"documents": 3}, {"a.jsonl": ["a", "aa", ""]}),
        ({"documents": 3, "count_empty": False}, {"a.jsonl": ["a", "aa", ""], "b.jsonl": ["b"]}),
        ({"characters": 5}, {"a.jsonl": ["a", "aa", ""], "b.jsonl": ["b", "bb"]}),
        ({"documents": 9, "tokens": 7}, {"a.jsonl": ["a", "aa", ""], "b.jsonl": ["b"]}),
        ({"documents": 99}, FILES),
    ],
)
def test_files_are_taken_until_the_limit_is_reached(
    limit: dict[str, Any], taken: dict[str, list[str]], tmp_path: Path
):
    dataset = limited(tmp_path, FILES, **limit)

    built = build(dataset)

    assert texts_of(dataset) == taken
    assert list(built.partitions) == list(taken)
    exported = (tmp_path / "store/tiny/exports/bin/latest/train.bin").read_bytes()
    texts = [text for texts in taken.values() for text in texts]
    assert exported == b"".join(token.to_bytes(2, "little") for token in ids(*texts))


def test_files_behind_the_limit_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read = []

    def noted(path: Path, **how: Any) -> tuple[Stamp, str]:
        read.append(path.name)
        return hash_file(path, **how)

    monkeypatch.setattr("tokflow.raw.files.hash_file", noted)
    dataset = limited(tmp_path, FILES, documents=4)
    for name in ("c.jsonl", "d.jsonl"):  # which would end the build
        (tmp_path / "raw" / name).write_text("{malformed")

    plan = make_plan(dataset)
    assert {*read} <= {"a.jsonl"}
    assert plan.is_open
    assert [of.name for of in plan.planned if of.stage == "tokens"] == ["a.jsonl"]
    build(dataset)
    again = make_plan(dataset)

    known = (tmp_path / "store/tiny/hashes.jsonl").read_text()
    assert {*read} <= {"a.jsonl", "b.jsonl"}
    assert "b.jsonl" in known
    assert "c.jsonl" not in known
    assert (again.is_up_to_date, again.is_open, again.num_files) == (True, False, 2)


def test_a_second_run_makes_nothing_and_verify_finds_nothing(tmp_path: Path):
    dataset = limited(tmp_path, FILES, tokens=8, split={"scope": "dataset"})
    build(dataset)
    before = content(tmp_path / "store")

    assert build(dataset).num_new == 0
    assert make_plan(dataset).is_up_to_date
    assert problems_of(dataset) == []
    assert find_garbage(dataset, keep=1) == {}
    assert content(tmp_path / "store") == before


def test_a_file_that_comes_or_goes_moves_the_limit_in_those_behind_it_alone(tmp_path: Path):
    dataset = limited(tmp_path, FILES, documents=6)
    build(dataset)
    write_texts(tmp_path / "raw/d2.jsonl", ["behind"])
    assert build(dataset).num_new == 0

    write_texts(tmp_path / "raw/aa.jsonl", ["x", "y"])
    built = build(dataset)

    tokens = [made.output.name for made in built.made if made.is_new]
    assert "a.jsonl" not in tokens
    assert texts_of(dataset) == {
        "a.jsonl": ["a", "aa", ""],
        "aa.jsonl": ["x", "y"],
        "b.jsonl": ["b"],
    }
    (tmp_path / "raw/a.jsonl").unlink()
    build(dataset)
    assert [*texts_of(dataset)] == ["aa.jsonl", "b.jsonl", "c.jsonl"]


def test_the_plan_says_that_files_before_have_changed_and_not_the_config(tmp_path: Path):
    dataset = limited(tmp_path, FILES, documents=6)
    build(dataset)
    write_texts(tmp_path / "raw/a.jsonl", ["other"])

    plan = make_plan(dataset)
    assert [(of.stage, of.name) for of in plan.missing if of.stage == "tokens"] == [
        ("tokens", "a.jsonl")
    ]
    [export] = [of for of in plan.missing if of.name == "bin"]
    assert export.reason == (
        "missing (waits for the tokens of all files, which decide what it must be)"
    )
    build_dataset(dataset, partitions=["a.jsonl"])

    [b] = [of for of in make_plan(dataset).missing if of.stage == "tokens"]
    assert (b.name, b.reason) == (
        "b.jsonl",
        "input changed (documents.limit leaves it 5 documents, before 3)",
    )


def test_another_kind_of_limit_is_a_change_of_the_config(tmp_path: Path):
    build_dataset(limited(tmp_path, FILES, documents=6))

    plan = make_plan(limited(tmp_path, FILES, characters=20))

    first = next(of for of in plan.missing if of.stage == "tokens")
    assert first.reason == "config changed (documents.limit)"


def test_a_file_that_cannot_be_built_ends_the_taking_and_exports_wait(tmp_path: Path):
    dataset = limited(tmp_path, FILES, documents=6)
    (tmp_path / "raw/b.jsonl").write_text("{malformed")

    built = build_dataset(dataset)

    assert [failed.name for failed in built.failed] == ["b.jsonl"]
    assert [made.output.name for made in built.made if made.output.stage == "export"] == []
    assert make_plan(dataset).is_open
    write_raw(tmp_path, FILES)
    build(dataset)


def test_with_partitions_only_these_are_built_and_none_behind_them_is_known(tmp_path: Path):
    dataset = limited(tmp_path, FILES, documents=6)

    built = build_dataset(dataset, partitions=["a.jsonl"])

    assert {made.output.stage for made in built.made} == {
        "tokenizer",
        "tokens",
        "split",
        "sequences",
    }
    assert not built.failed
    assert [*built.partitions] == ["a.jsonl"]
    with pytest.raises(ConfigError, match="run without --partition to take the files that follow"):
        build_dataset(dataset, partitions=["c.jsonl"])
    with pytest.raises(ConfigError, match="--shard: expected a dataset whose files are built each"):
        build_dataset(dataset, share=FileShare(1, 2))


@pytest.mark.parametrize("scope", ["file", "dataset"])
def test_partitions_built_one_by_one_give_what_a_run_over_all_gives(scope: str, tmp_path: Path):
    split = {"scope": scope, "parts": {of: {"fraction": 0.5} for of in ("train", "validation")}}
    folders = [tmp_path / "one", tmp_path / "all"]
    one, whole = (limited(folder, FILES, documents=5, split=split) for folder in folders)
    build(whole)

    stages = []
    for key in ("a.jsonl", "b.jsonl", "a.jsonl"):
        built = build_dataset(one, partitions=[key])
        assert not built.failed
        stages.append({made.output.stage for made in built.made if made.is_new})

    assert "export" not in stages[0]
    assert ("split" in stages[0]) == (scope == "file")
    stores = [content(folder / "store/tiny") for folder in folders]
    assert stores[0] == stores[1]


def test_with_a_shuffle_of_documents_files_are_taken_in_the_order_of_the_seed(tmp_path: Path):
    files = {f"{number:02}.jsonl": [f"{number}", "x"] for number in range(12)}
    dataset = limited(tmp_path, files, documents=5, shuffle={"seed": 3, "documents": "file"})
    order = in_taking_order(files, dataset.shuffle)

    build(dataset)

    assert order != sorted(files)
    assert [*texts_of(dataset)] == sorted(order[:3])
    assert len(texts_of(dataset)[order[2]]) == 1
    del files[order[5]]
    assert in_taking_order(files, dataset.shuffle) == [*order[:5], *order[6:]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"documents": {"limit": {"scope": "dataset"}}}, "scope: expected file, or a limit of"),
        ({"raw": {"files": "raw/*", "group": 5}}, "raw.group: expected null, for documents.limit"),
        ({"tokenizer": {"kind": "trained", "vocab_size": 300}}, "tokenizer.files: expected a pat"),
    ],
)
def test_what_does_not_go_with_a_limit_of_the_dataset_is_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
):
    documents = {"limit": {"scope": "dataset", "documents": 3}}
    with pytest.raises(ConfigError, match=message):
        declare(tmp_path, FILES, **{"documents": documents, **fields})

"""Datasets whose parts are the splits of their source."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.cli import inspect
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow_tests.hub import Hub
from tokflow_tests.outputs import parts, tokens_of
from tokflow_tests.tiny import build, declare, ids

TRAIN, TEST = "data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"
PARTS = {"train": {"source_split": "train"}, "validation": {"source_split": "test"}}


@pytest.fixture(autouse=True)
def texts(hub: Hub) -> None:
    extra = "data/extra-00000-of-00001.jsonl"
    hub.push("team/texts", {TRAIN: b'{"text":"one"}\n', TEST: b'{"text":"two"}\n', extra: b"no"})


def declared(folder: Path, of_parts: dict[str, Any] = PARTS, **raw: Any) -> Dataset:
    raw = {"files": "hf://datasets/team/texts", **raw}
    return declare(folder, raw=raw, split={"parts": of_parts}, exports=["bin"])


def refusal(folder: Path, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        _ = graph_of(declared(folder, **arguments)).listing
    return str(raised.value)


def test_the_splits_of_the_source_become_parts_and_others_are_not_fetched(hub: Hub, tmp_path: Path):
    dataset = declared(tmp_path)

    built = build(dataset)

    found = {name: tokens_of(part) for name, part in parts(dataset, "bin").items()}
    assert found == {"train": ids("one"), "validation": ids("two")}
    assert hub.downloads() == [TEST, TRAIN]
    assert [left.found for left in built.left_out] == ["of the split extra, which no part takes"]


def test_an_export_names_the_commit_and_inspect_shows_it(hub: Hub, tmp_path: Path, capsys):
    dataset = declared(tmp_path)
    build(dataset)
    commit = hub.branches["team/texts"]["main"]
    output = graph_of(dataset).output("export", variant=dataset.exports[0].name)

    options = {"html": None, "part": None, "first": 0, "json": False}
    inspect.main(output.folder, sequences=1, trust_remote_code=False, **options)

    assert output.manifest().details["commits"] == {"team/texts": commit}
    assert f"of the hub   team/texts at {commit}" in capsys.readouterr().out


def test_groups_are_of_files_of_one_split(hub: Hub, tmp_path: Path):
    hub.push("team/texts", {f"data/{of}-00001-of-00002.jsonl": b"" for of in ("test", "train")})

    partitions = graph_of(declared(tmp_path, group=100)).partitions.values()

    splits = [[source.source_split for source in sources] for sources in partitions]
    assert splits == [["test"] * 2, ["train"] * 2]


def test_the_sizes_that_the_hub_tells_are_planned_and_grouped_by(hub: Hub, tmp_path: Path):
    names = [f"data/train-0000{number}-of-00005.txt" for number in range(5)]
    hub.push("team/more", dict.fromkeys(names, b"x" * 1000))
    raw = {"files": "hf://datasets/team/more", "group": "2 kB"}

    plan = make_plan(declare(tmp_path, raw=raw))

    assert [len(sources) for sources in plan.graph.partitions.values()] == [2, 2, 1]
    assert plan.num_bytes == 5_000
    assert hub.downloads() == []


def test_a_part_of_an_unknown_split_is_refused(tmp_path: Path):
    unknown = {"train": {"source_split": "train"}, "test": {"source_split": "tset"}}

    assert refusal(tmp_path, of_parts=unknown) == (
        "dataset 'tiny': split.parts.test.source_split: expected a split that is read: extra, "
        "test, train, found 'tset'; did you mean 'test'?"
    )
    assert refusal(tmp_path, split="train") == (
        "dataset 'tiny': split.parts.validation.source_split: expected a split that is read: "
        "train, found 'test'; name one of them, or read it by raw.split"
    )
    (tmp_path / "raw").mkdir(exist_ok=True)
    (tmp_path / "raw" / "a.jsonl").write_text("")
    assert refusal(tmp_path, files="raw/a.jsonl") == (
        "dataset 'tiny': split.parts.train.source_split: expected raw files of a source that has "
        "splits, as hf://datasets/org/name, found 'train'; take them by {files: ...}, a pattern "
        "over their keys"
    )

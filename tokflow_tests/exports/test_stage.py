"""An export whose files are written by several tasks."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.errors import CorruptOutputError
from tokflow.exports import shuffled_documents, stage
from tokflow.exports.config import DeclaredExports
from tokflow.exports.stage import ExportSegment, ExportWriter, parts_of
from tokflow.pipeline import tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow_tests.disks import flip
from tokflow_tests.outputs import content
from tokflow_tests.tiny import declare

ROWS: list[dict[str, Any]] = [
    {"format": "parquet", "shard_size": 240, "sequences_per_group": 3},
    {"format": "easydel", "shard_size": 600, "sequences_per_group": 2},
    {"format": "arrow", "shards": 13, "sequences_per_batch": 2},
    {"format": "jsonl", "shards": 9, "compression": "gz"},
    {"format": "webdataset", "shard_size": 3_216},
    {"format": "pickle", "shards": 14},
    {"format": "npy", "layout": "sequences", "shards": 14},
    {"format": "mds", "shard_size": 900, "hashes": ["sha1"]},
    {"format": "hf_dataset", "shards": 5},
    {"format": "lance", "layout": "sequences", "shards": 7},
]

SPLIT = {"parts": {"train": {"start": 0, "characters": 70}, "rest": {"start": 70}}}


def dataset_in(folder: Path, exports: list[Any], **attributes: Any) -> Dataset:
    choose = random.Random(2)
    files = {
        f"{number}.jsonl": ["x" * choose.randint(0, 40) for _ in range(6)] for number in range(3)
    }
    files["one.jsonl"] = ["ab"]
    return declare(
        folder,
        files,
        exports=exports,
        **{"packing": {"sequence_length": 8}, "split": SPLIT, **attributes},
    )


def segments(dataset: Dataset, name: str) -> list[ExportSegment]:
    graph = graph_of(dataset)
    config = graph.dataset.of(DeclaredExports).config(name)
    output = graph.output("export", variant=config.name)
    made_of = {"parts": parts_of(output), "recipe": output.recipe}
    return ExportWriter(config=config, dataset="tiny", details={}, **made_of).shares()


def kill_at(number: int, dataset: Dataset, patch: pytest.MonkeyPatch) -> list[int]:
    """Kill a build at a segment of its export; return the numbers of those that were begun, to
    which the next build adds."""
    write, begun = ExportWriter.write, []

    def is_killed(writer: ExportWriter, share: ExportSegment, *more: Any) -> None:
        begun.append(share.number)
        if begun.count(number) == 1 and share.number == number:
            raise KeyboardInterrupt
        write(writer, share, *more)

    patch.setattr(ExportWriter, "write", is_killed)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(dataset, jobs=1)
    return begun


def files_of(dataset: Dataset) -> dict[str, bytes]:
    return content(dataset.folder / "exports")


@pytest.mark.parametrize(
    ("strategy", "jobs", "exports", "shuffle"),
    [
        ("concat", 1, ROWS, {}),
        ("best_fit", 2, ROWS[:1], {}),
        ("greedy", 1, ROWS[:1], {"sequences": True}),
        ("concat", 1, ROWS[-1:], {"documents": "dataset"}),
        ("best_fit", 1, ROWS[:1], {"documents": "dataset", "sequences": True}),
    ],
)
def test_no_byte_depends_on_how_many_tasks_write_an_export(
    strategy: str,
    jobs: int,
    exports: list[dict[str, Any]],
    shuffle: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shuffled_documents, "GROUP_TOKENS", 100)
    packing = {"sequence_length": 8, "strategy": strategy}
    dataset = dataset_in(tmp_path, exports, packing=packing, shuffle=shuffle)
    assert build_dataset(dataset, jobs=1).failed == ()
    expected = files_of(dataset)
    shutil.rmtree(dataset.folder / "exports")
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 100)
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)

    assert build_dataset(dataset, jobs=jobs).failed == ()

    assert files_of(dataset) == expected
    for options in exports:
        assert len(segments(dataset, options["format"])) > 3
    assert not list(dataset.folder.rglob("*.segments"))


def test_formats_whose_files_depend_on_each_other_are_written_by_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 30)
    exports = ["bin", "npy", "litdata", "lance"]
    dataset = dataset_in(tmp_path, exports)
    build_dataset(dataset, jobs=1)

    assert [segments(dataset, config.name) for config in dataset.exports] == [[]] * 4


def killed_at_the_second(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Dataset, list[int]]:
    """Return a dataset whose build was killed, and the segments that are made from then on, too."""
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 30)
    monkeypatch.setattr(tasks, "MADE_TOGETHER_BYTES", 0)
    dataset = dataset_in(folder, ROWS[:1])
    return dataset, kill_at(2, dataset, monkeypatch)


@pytest.mark.parametrize("more", [0, 1])
def test_a_killed_run_goes_on_at_the_first_segment_that_is_missing_or_of_another_version(
    more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset, made = killed_at_the_second(tmp_path, monkeypatch)
    first = [*made]
    monkeypatch.setattr(stage, "SEGMENT_VERSION", stage.SEGMENT_VERSION + more)
    assert build_dataset(dataset, jobs=1).failed == ()

    num_segments = len(segments(dataset, "parquet"))
    assert (first, made[3:]) == ([0, 1, 2], [*range(0 if more else 2, num_segments)])


@pytest.mark.parametrize(("number", "damaged"), [(0, 0), (23, -1)], ids=["first", "tails"])
def test_a_killed_run_goes_on_from_no_damaged_token(
    number: int, damaged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 30)
    monkeypatch.setattr(tasks, "MADE_TOGETHER_BYTES", 0)
    dataset = dataset_in(tmp_path, ROWS[:1], split={})
    build_dataset(dataset, jobs=1)
    shutil.rmtree(dataset.folder / "exports")
    kill_at(segments(dataset, "parquet")[number].number, dataset, monkeypatch)
    tokens = graph_of(dataset).tokens("0.jsonl").folder / "tokens.bin"
    data = np.fromfile(tokens, dtype=np.uint16)
    data[damaged] ^= 1
    data.tofile(tokens)

    [failed] = build_dataset(dataset, jobs=1).failed

    assert isinstance(failed.error, CorruptOutputError)
    assert failed.error.where == str(tokens)


def test_a_damaged_segment_is_not_joined_and_the_next_run_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 30)
    dataset = dataset_in(tmp_path, ROWS[:1])
    join, damaged = ExportWriter.join, []

    def join_damaged(writer: ExportWriter, segments: Any, folder: Path) -> None:
        damaged.append(flip(next(segments[2].folder.glob("*.parquet"))).name)
        join(writer, segments, folder)

    monkeypatch.setattr(ExportWriter, "join", join_damaged)
    [failed] = build_dataset(dataset, jobs=1).failed
    monkeypatch.setattr(ExportWriter, "join", join)
    assert build_dataset(dataset, jobs=1).failed == ()

    assert isinstance(failed.error, CorruptOutputError)
    assert damaged[0] in str(failed.error)
    made = files_of(dataset)
    shutil.rmtree(dataset.folder / "exports")
    assert build_dataset(dataset, jobs=1).failed == ()
    assert files_of(dataset) == made

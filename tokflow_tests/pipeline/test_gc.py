import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import ranges
from tokflow.errors import MissingOutputError
from tokflow.pipeline import output_tasks, tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage, remove_all, unreferred_bytes
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store.atomic import folder_of_segments_here, machine, segments_folder
from tokflow.tokens.stage import TokensWriter
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import edit_manifest
from tokflow_tests.tiny import build, declare_small, write_raw, write_texts

STORE = Path("store/small")


def names(folder: Path, *, keep: int) -> list[str]:
    made = declare_small(folder, exports=["parquet"])
    found = [garbage.parent for garbage in find_garbage(made, keep=keep)]
    return [path.relative_to(folder / STORE).as_posix() for path in found]


def build_of_lengths(folder: Path, *lengths: int) -> None:
    for length in lengths:
        build(declare_small(folder, packing={"sequence_length": length}, exports=["parquet"]))


def collect(dataset: Dataset) -> None:
    """Remove one after another what is not used."""
    for garbage in find_garbage(dataset, keep=0):
        remove_all(dataset.store, [garbage])


def test_the_newest_stay_and_the_others_go(tmp_path: Path):
    build_of_lengths(tmp_path, 4, 16, 8)

    assert names(tmp_path, keep=3) == []
    assert sorted(names(tmp_path, keep=2)) == [
        "exports/parquet",
        "sequences/a.jsonl",
        "sequences/b.jsonl",
        "sequences/sub/c.jsonl",
    ]


def test_what_is_not_referred_to_any_more_is_what_is_collected(tmp_path: Path):
    build_of_lengths(tmp_path, 4, 8)
    made = declare_small(tmp_path, packing={"sequence_length": 8}, exports=["parquet"])
    used = {of.folder for of in make_plan(made).planned}

    assert unreferred_bytes(made, used) == sum(find_garbage(made, keep=0).values()) > 0
    collect(made)
    assert unreferred_bytes(made, used) == 0


def test_outputs_of_a_file_that_is_gone_go_with_their_folder(tmp_path: Path):
    build_of_lengths(tmp_path, 8)
    (tmp_path / "raw/sub/c.jsonl").unlink()
    made = declare_small(tmp_path, exports=["parquet"])
    build_dataset(made)

    collect(made)

    assert not (tmp_path / STORE / "tokens/sub").exists()


def test_latest_of_a_declared_export_stays(tmp_path: Path):
    build_of_lengths(tmp_path, 4, 8)
    going_back = declare_small(tmp_path, packing={"sequence_length": 4}, exports=["parquet"])

    removed = {garbage.parent.name for garbage in find_garbage(going_back, keep=0)}

    assert removed == {"a.jsonl", "b.jsonl", "c.jsonl"}


def test_an_export_that_is_declared_no_more_goes_with_its_link_and_its_sequences(tmp_path: Path):
    build_dataset(declare_small(tmp_path, exports=["bin", "parquet"]))
    made = declare_small(tmp_path, exports=["bin"])

    collect(made)

    assert [path.name for path in (tmp_path / STORE / "exports").iterdir()] == ["bin"]
    assert not (tmp_path / STORE / "sequences").exists()
    assert make_plan(made).is_up_to_date


def test_a_dataset_that_is_not_built_has_no_known_garbage(tmp_path: Path):
    build_of_lengths(tmp_path, 8)
    write_raw(tmp_path, {"a.jsonl": ["other"]})

    with pytest.raises(
        MissingOutputError, match="4 of 11 outputs missing; build small first by `tokflow run`"
    ):
        find_garbage(declare_small(tmp_path, exports=["parquet"]), keep=0)


def test_what_is_damaged_goes_and_what_a_newer_tokflow_made_stays(tmp_path: Path):
    build_of_lengths(tmp_path, 4, 16, 8)
    used = {
        planned.folder
        for planned in make_plan(declare_small(tmp_path, exports=["parquet"])).planned
    }
    older = sorted(set((tmp_path / STORE / "sequences/a.jsonl").iterdir()) - used)
    (older[0] / "_tokflow/manifest.json").unlink()
    edit_manifest(older[1], lambda fields: fields.update(format_version=3))

    found = set(find_garbage(declare_small(tmp_path, exports=["parquet"]), keep=3))

    assert found == {older[0]}


def test_what_another_machine_has_left_unfinished_goes_a_day_after_its_last_change(tmp_path: Path):
    made = declare_small(tmp_path, exports=["parquet"])
    build_dataset(made)
    folder = tmp_path / STORE / "tokens" / "new.jsonl"
    left = folder / ".0123456789abcdef.00000000.12.89abcdef.tmp"
    (left / "inner").mkdir(parents=True)
    (left / "inner" / "tokens.bin").write_bytes(b"12345")
    link = tmp_path / STORE / "exports/parquet/.latest.00000000.12.89abcdef.tmp"
    link.symlink_to("nowhere")
    day_ago = time.time() - 86_500
    for path in (link, left / "inner", left):
        os.utime(path, (day_ago, day_ago), follow_symlinks=False)

    while_its_file_changes = find_garbage(made, keep=1)
    os.utime(left / "inner" / "tokens.bin", (day_ago, day_ago))
    a_day_later = find_garbage(made, keep=1)
    for garbage in a_day_later:
        remove_all(made.store, [garbage])

    assert while_its_file_changes == {link: 0}
    assert a_day_later == {link: 0, left: 5}
    assert not folder.exists()
    assert not link.is_symlink()
    assert find_garbage(made, keep=1) == {}


def test_segments_that_never_go_to_the_url_of_a_store_go_with_the_outputs_there(
    tmp_path: Path, object_store: ObjectStore
):
    store = f"{object_store.url}/store"
    build_dataset(declare_small(tmp_path, store=store, exports=["parquet"]))
    packing = {"sequence_length": 16}
    made = declare_small(tmp_path, store=store, packing=packing, exports=["parquet"])
    build_dataset(made)
    left = folder_of_segments_here(graph_of(made).tokens("a.jsonl").folder)
    (left / "00000").mkdir(parents=True)
    (left / "00000" / "tokens.bin").write_bytes(b"12345")

    garbage = find_garbage(made, keep=0)
    remove_all(made.store, garbage)

    assert len(garbage) > 1
    assert garbage[left] == 5
    assert find_garbage(made, keep=0) == {}


@pytest.mark.parametrize("kept_here_bytes", [None, 0], ids=["here", "URL"])
def test_segments_of_a_build_under_way_stay(
    kept_here_bytes: int | None,
    tmp_path: Path,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
):
    """The build is of another YAML of the same name and store, and goes on from old segments."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 200)
    monkeypatch.setattr(tasks, "MADE_TOGETHER_BYTES", 0)
    store = "store" if kept_here_bytes is None else f"{object_store.url}/store"
    monkeypatch.setattr(output_tasks, "KEPT_HERE_BYTES", kept_here_bytes or 0)
    write_texts(tmp_path / "other/large.jsonl", ["a text"] * 60)
    fields = {"store": store, "exports": ["bin"]}
    build(declare_small(tmp_path, **fields))
    write, numbers = TokensWriter.write, []

    def another(self: TokensWriter, share: Any, *more: Any) -> None:
        numbers.append(share.number)
        if len(numbers) == 2:
            raise KeyboardInterrupt
        if len(numbers) == 3:
            folders = {path.parent.name for path in tmp_path.rglob(".writer.*.tmp")}
            assert len(folders) == 1, "a mark stays from the first task to the last"
            now = declare_small(tmp_path, **fields)
            remove_all(now.store, find_garbage(now, keep=0))
        write(self, share, *more)

    monkeypatch.setattr(TokensWriter, "write", another)
    of_other = {**fields, "raw": {"files": "other/*.jsonl"}}
    with pytest.raises(KeyboardInterrupt):
        build_dataset(declare_small(tmp_path, **of_other), jobs=1)
    object_store.age(seconds=100_000)

    build(declare_small(tmp_path, **of_other))

    assert numbers[:3] == [0, 1, 1]
    assert len(numbers) > 5


def test_segments_are_garbage_when_the_process_that_wrote_them_has_ended(tmp_path: Path):
    made = declare_small(tmp_path, exports=["parquet"])
    build(made)
    segments = segments_folder(graph_of(made).tokens("a.jsonl").folder)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as writer:
        mark = segments / f".writer.{machine()}.{writer.pid}.89abcdef.tmp"
        mark.parent.mkdir()
        mark.touch()

        while_it_lives = find_garbage(made, keep=1)
        remove_all(made.store, [segments])
        is_there = mark.exists()
        writer.communicate(b"\n")

    assert while_it_lives == {}
    assert is_there
    assert find_garbage(made, keep=1) == {segments: 0}

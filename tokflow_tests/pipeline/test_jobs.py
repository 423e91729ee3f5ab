"""The same bytes, however many processes make them, in whatever order, in one run or in shares."""

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import ranges
from tokflow.pipeline import run, tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.output_tasks import Task
from tokflow.pipeline.raw_files import FileShare
from tokflow.pipeline.run import build_dataset
from tokflow.pipeline.tasks import make_tasks
from tokflow.pools.pool import Advance, Finished, InProcess, LostWorkerError, Make, R, T, ignore
from tokflow.store import atomic
from tokflow_tests.outputs import content
from tokflow_tests.tiny import declare, load_dataset, write_yaml

FILES = {f"{number:02d}.jsonl": ["ab", "c" * number, "", "größe"] for number in range(9)}

SPLIT = {"parts": {"train": {"start": 0, "characters": 40}, "rest": {"start": 40}}}

DATASET = {
    "split": {"scope": "dataset", "boundary": "character", **SPLIT},
    "strata": {"long": "num_chars > quantile(0.5)", "some": "num_chars > 0"},
    "tokenizer": {"kind": "trained", "vocab_size": 260},
}


class Shuffled(InProcess):
    """A pool that makes tasks in any order but their own."""

    def map(
        self, make: Make[T, R], tasks: Iterable[T], *, advance: Advance = ignore
    ) -> Finished[T, R]:
        shuffled = list(tasks)
        random.Random(5).shuffle(shuffled)
        yield from super().map(make, shuffled, advance=advance)


@pytest.fixture(autouse=True)
def _no_dataset_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(tasks, "MADE_TOGETHER", 2)


def declare_in(
    folder: Path, files: Mapping[str, Iterable[str]] = FILES, **attributes: Any
) -> Dataset:
    return declare(folder, files, exports=["bin", "parquet"], **attributes)


def built_bytes(dataset: Dataset, **how: Any) -> dict[str, bytes]:
    """Build the dataset; return every byte of its store."""
    built = build_dataset(dataset, **how)
    assert built.failed == ()
    return content(dataset.folder)


def test_no_byte_depends_on_jobs_order_and_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def dataset_of(way: str) -> Dataset:
        return declare_in(tmp_path / way, **DATASET)

    expected = built_bytes(dataset_of("1"), jobs=1)

    assert built_bytes(dataset_of("several"), jobs=2) == expected
    shared = dataset_of("shares")
    for number in (3, 1, 2, 1):
        of_share = build_dataset(shared, jobs=1, share=FileShare(number, 3))
        assert list(of_share.partitions) == list(FILES)[number - 1 :: 3]
        assert not (shared.folder / "exports").exists()
    assert built_bytes(shared, jobs=1) == expected
    monkeypatch.setattr(run, "open_pool", lambda *_: Shuffled())
    assert built_bytes(dataset_of("shuffled")) == expected


class Counted(InProcess):
    """A pool that counts the calls in which it was asked for anything."""

    num_used = 0
    is_started = False

    def start(self) -> None:
        self.is_started = True

    def map(
        self, make: Make[T, R], tasks: Iterable[T], *, advance: Advance = ignore
    ) -> Finished[T, R]:
        self.num_used += 1
        yield from super().map(make, tasks, advance=advance)


@pytest.mark.parametrize(
    ("num_files", "group", "num_used"), [(7, None, 0), (9, None, 3), (9, 2, 0)]
)
def test_tiny_files_are_given_to_other_processes_where_they_are_many(
    num_files: int,
    group: int | None,
    num_used: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(tasks, "SMALL_BYTES", 8 * tasks.BYTES_OF_OUTPUT)
    pool = Counted()
    monkeypatch.setattr(run, "open_pool", lambda *_: pool)
    files = {key: FILES[key] for key in list(FILES)[:num_files]}

    build_dataset(declare_in(tmp_path, files, raw={"files": "raw/*.jsonl", "group": group}))

    assert pool.num_used == num_used  # for tokens, split and sequences
    assert pool.is_started == (num_used > 0)


def test_long_tasks_begin_first_and_ranges_of_a_large_file_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Ordered(InProcess):
        def map(
            self, make: Make[T, R], tasks: Iterable[T], *, advance: Advance = ignore
        ) -> Finished[T, R]:
            for together, results in super().map(make, tasks, advance=advance):
                begun.extend(
                    task.name.removeprefix("tokens of ")
                    for task in (together if isinstance(together, list) else ())
                    if isinstance(task, Task) and task.name.startswith("tokens") and not task.joined
                )
                yield together, results

    begun: list[str] = []
    monkeypatch.setattr(ranges, "RANGE_BYTES", 100)
    monkeypatch.setattr(run, "open_pool", lambda *_: Ordered())
    files = {"a.jsonl": ["a"], "b.jsonl": ["b" * 99] * 5, "c.jsonl": ["c" * 200], "d.jsonl": ["d"]}

    built = build_dataset(declare_in(tmp_path, files))

    assert begun[:2] == ["c.jsonl", "b.jsonl"]
    assert begun[-2:] == ["a.jsonl", "d.jsonl"]
    assert set(begun[1:-2]) == {"b.jsonl"}
    tokens = [made.output.name for made in built.made if made.output.stage == "tokens"]
    assert tokens == list(files)


def test_outputs_made_together_fail_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sync = atomic.sync

    def full_disk(path: Path | str) -> None:
        if "/split/02.jsonl/" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    monkeypatch.setattr(tasks, "MADE_TOGETHER", 64)
    monkeypatch.setattr(atomic, "sync", full_disk)
    dataset = declare_in(tmp_path)
    (tmp_path / "raw" / "04.jsonl").write_text('{"txet": "b"}\n')

    built = build_dataset(dataset)

    assert [(failed.stage, failed.name) for failed in built.failed] == [
        ("tokens", "04.jsonl"),
        ("split", "02.jsonl"),
    ]
    assert "split/02.jsonl/" in built.failed[1].explained.where
    assert ".tmp" not in built.failed[1].explained.where
    assert list(built.partitions) == [key for key in FILES if key[:2] not in ("02", "04")]
    assert not list(dataset.folder.rglob("*.tmp"))
    assert not (dataset.folder / "split" / "02.jsonl").exists()


def make_or_die(together: Sequence[Task], advance: Advance) -> list[Exception | None]:
    """Make tasks in a process that a library kills at one file."""
    if any(task.name == "tokens of 04.jsonl" for task in together):
        os.kill(os.getpid(), signal.SIGKILL)
    return make_tasks(together, advance)


def test_a_file_that_kills_its_worker_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "MADE_TOGETHER", 3)
    monkeypatch.setattr(tasks, "make_tasks", make_or_die)

    built = build_dataset(declare_in(tmp_path), jobs=2)

    [failed] = built.failed
    assert isinstance(failed.error, LostWorkerError)
    assert failed.name == "04.jsonl"
    assert list(built.partitions) == [key for key in FILES if key != "04.jsonl"]


@pytest.mark.slow
def test_shares_in_processes_at_once_and_one_killed_make_what_one_run_makes(tmp_path: Path):
    expected = built_bytes(declare_in(tmp_path / "plain", **DATASET), jobs=1)
    folder = tmp_path / "shared"
    declare_in(folder)
    yaml = write_yaml(
        folder, name="tiny", exports=["bin", "parquet"], packing={"sequence_length": 4},
        raw={"files": "raw/*.jsonl"}, **DATASET,
    )  # fmt: skip

    def start(number: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tokflow", "run", "--config", str(yaml)]
        command += ["--shard", f"{number}/2", "--jobs", "1"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    killed, other = start(1), start(2)
    while not (folder / "store" / "tiny" / "tokenizer").exists():
        assert killed.poll() in (None, 0)
    killed.kill()
    killed.communicate()
    said = [process.communicate()[0] for process in (other, start(1))]

    assert "tiny: shard 2/2: 4 files of 9, " in said[0]
    assert other.returncode == 0
    assert not (folder / "store" / "tiny" / "exports").exists()
    made = built_bytes(load_dataset(yaml), jobs=1)
    # Unfinished folders of the one that was killed stay where nothing was left to be made.
    assert {name: made[name] for name in made if ".tmp/" not in name} == expected

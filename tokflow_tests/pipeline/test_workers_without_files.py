"""Tasks of a dataset whose store is at a URL, each done by a machine that has no file of it."""

import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import ranges
from tokflow.pipeline import run, tasks
from tokflow.pipeline.run import build_dataset
from tokflow.pools.pool import Advance, Finished, InProcess, Make, R, T, ignore, packed_for_machines
from tokflow.store import integrity
from tokflow.store.remote import CACHE_VARIABLE
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.pipeline.test_jobs import DATASET, SPLIT
from tokflow_tests.tiny import declare

FILES = {f"{number}.jsonl": ["ab", "c" * 50, "", "größe", "d e"] for number in range(3)}


class Machines(InProcess):
    """A machine for each task, with an empty cache; its results go back as those of Ray do."""

    is_here = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_tasks = 0

    def map(
        self, make: Make[T, R], tasks: Iterable[T], *, advance: Advance = ignore
    ) -> Finished[T, R]:
        for task in tasks:
            packed = packed_for_machines((make, task))
            self.num_tasks += 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(CACHE_VARIABLE, str(self.folder / str(self.num_tasks)))
                patch.setattr(integrity, "arrived", {})
                make_there, task_there = pickle.loads(packed)
                back = packed_for_machines(make_there(task_there, advance))
            yield task, pickle.loads(back)


DATASETS: dict[str, dict[str, Any]] = {
    "file": {"split": {"boundary": "character", **SPLIT}},
    "dataset": DATASET,
}


@pytest.mark.parametrize("name", DATASETS)
def test_what_machines_make_that_have_nothing_is_what_one_makes_alone(
    name: str, tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(tasks, "MADE_TOGETHER", 1)
    files = FILES
    is_segments = name == "dataset"
    if is_segments:
        monkeypatch.setattr(ranges, "RANGE_BYTES", 30)
        files = {"0.jsonl": FILES["0.jsonl"]}
    how: dict[str, Any] = {"exports": ["bin", "parquet"], **DATASETS[name]}
    machines = Machines(tmp_path / "machines")
    monkeypatch.setattr(run, "open_pool", lambda *_: machines)

    there = build_dataset(declare(tmp_path, files, store=f"{object_store.url}/store", **how))

    assert there.failed == ()
    monkeypatch.setattr(run, "open_pool", lambda *_: InProcess())
    here = build_dataset(declare(tmp_path, store="here", **how))
    assert [made.manifest for made in there.made] == [made.manifest for made in here.made]
    assert machines.num_tasks >= 8 if is_segments else machines.num_tasks == 11
    cache = Path(os.environ[CACHE_VARIABLE])
    assert not list(cache.rglob("tokens.bin"))  # whoever hands out the tasks fetches no tokens

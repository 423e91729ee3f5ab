"""A first build, in which raw files are hashed while their documents are read."""

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ChangedFileError
from tokflow.pipeline import tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.results import Reporter
from tokflow.pipeline.run import build_dataset
from tokflow_tests.outputs import content
from tokflow_tests.tiny import declare

TEXT = "one line of a text. " * 5_000

FORMATS: dict[str, bytes] = {
    "a.jsonl": b"".join(json.dumps({"text": f"{of} {TEXT}"}).encode() + b"\n" for of in range(9)),
    "b.csv": b"text\n" + f'"{TEXT}"\n'.encode() * 9,
    "c.txt": TEXT.encode() * 9,
    "d.jsonl.gz": gzip.compress(json.dumps({"text": os.urandom(600_000).hex()}).encode(), 1),
}
"""0.9 MB each."""


@pytest.fixture(autouse=True)
def _no_file_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokflow.raw.files.MOST_READ_TWICE", -1)
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)


def declare_in(folder: Path, files: Mapping[str, bytes] = FORMATS, **attributes: Any) -> Dataset:
    raw = folder / "raw"
    raw.mkdir(parents=True)
    for name, data in files.items():
        (raw / name).write_bytes(data)
    attributes["raw"] = {"files": "raw/*", **attributes.get("raw", {})}
    return declare(folder, exports=["bin"], **attributes)


def bytes_read() -> int:
    """Return how many bytes this process has read by calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def hashed_first(folder: Path, **attributes: Any) -> tuple[dict[str, bytes], int]:
    """Return the store of a build before which raw files are hashed, and the bytes read."""
    dataset, before = declare_in(folder, **attributes), bytes_read()
    build_dataset(dataset, graph=graph_of(dataset), jobs=1)
    return content(dataset.folder), bytes_read() - before


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="this system does not count reads")
@pytest.mark.parametrize("group", [None, 3], ids=["files", "groups"])
def test_raw_files_are_read_once_and_become_the_same(group: int | None, tmp_path: Path):
    attributes = {"raw": {"group": group}} if group else {}
    expected, twice = hashed_first(tmp_path / "first", **attributes)
    dataset = declare_in(tmp_path / "once", **attributes)

    before = bytes_read()
    build_dataset(dataset, jobs=1)
    once = bytes_read() - before

    assert content(dataset.folder) == expected
    assert twice - once > 0.9 * sum(map(len, FORMATS.values()))
    assert make_plan(dataset).is_up_to_date
    lines = (dataset.folder / "hashes.jsonl").read_text().split("\n")
    names = [json.loads(line)[0] for line in lines if line]
    assert sorted(map(os.path.basename, names)) == [*FORMATS]


def test_what_workers_have_hashed_is_found_by_the_others(tmp_path: Path):
    expected, _ = hashed_first(tmp_path / "first")
    dataset = declare_in(tmp_path / "several")

    assert build_dataset(dataset, jobs=2).failed == ()
    assert content(dataset.folder) == expected


def test_a_file_that_changes_while_it_is_read_becomes_nothing(tmp_path: Path):
    dataset = declare_in(tmp_path, {"a.jsonl": FORMATS["a.jsonl"]})

    class Writing(Reporter):
        def advance(self, num_documents: int, num_bytes: int) -> None:
            with (tmp_path / "raw/a.jsonl").open("ab") as file:
                file.write(b"more")

    [failed] = build_dataset(dataset, jobs=1, reporter=Writing()).failed

    assert isinstance(failed.error, ChangedFileError)
    assert not list(dataset.folder.glob("tokens/**/*.bin"))


def test_a_file_of_a_dataset_that_was_built_is_hashed_first(tmp_path: Path):
    dataset = declare_in(tmp_path)
    build_dataset(dataset, jobs=1)
    (tmp_path / "raw/a.jsonl").touch()

    graph = graph_of(dataset, reads_once=True)

    assert graph.raw("a.jsonl").is_hashed
    assert graph.tokens("a.jsonl").is_made

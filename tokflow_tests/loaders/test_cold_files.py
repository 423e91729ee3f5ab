"""Rows of files that are not in the page cache: the bytes that the disk is asked for."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tokflow.loaders import open_rows, opening
from tokflow.pools import machine
from tokflow.pools.machine import free_bytes
from tokflow_tests.tiny import build, copy_of, declare

LENGTH, NUM_ROWS = 4_096, 2_000
EXPORTS = {"bin": 2, "npy": 2, "megatron": 2, "litdata": 2, "mds": 4, "arrow": 4, "hf_dataset": 4}
"""Formats that are memory-mapped, and the bytes of a token of each."""


def read_bytes() -> int:
    """Return the bytes that this process has had read from disks."""
    fields = dict(line.split(":") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def forget(folder: Path) -> None:
    """Take the files out of the page cache."""
    for path in filter(Path.is_file, folder.rglob("*")):
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cold")
    texts = {"a.jsonl": ["some text " * (LENGTH * NUM_ROWS // 10)]}
    packing = {"strategy": "concat", "sequence_length": LENGTH}
    dataset = declare(folder, texts, exports=[*EXPORTS], packing=packing)
    build(dataset)
    return copy_of(dataset.folder, folder) / "exports"  # whose files nobody has mapped


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone counts what is read")
@pytest.mark.parametrize(("name", "size"), EXPORTS.items())
def test_random_rows_of_files_larger_than_memory_cost_the_disk_twice_their_bytes_at_most(
    name: str, size: int, exports: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(opening, "free_bytes", lambda: 0)
    length = {} if size == 4 else {"sequence_length": LENGTH}
    rows = open_rows(exports / name / "latest", fields=["input_ids"], **length)
    forget(exports / name)
    rows[[0]]  # whose file is opened: pyarrow has the beginning of it read ahead
    chosen = np.random.default_rng(1).permutation(np.arange(NUM_ROWS * 3 // 4, NUM_ROWS - 1))[:40]
    before = read_bytes()

    found = rows[chosen]["input_ids"]

    cost = read_bytes() - before
    text = np.frombuffer(b"some text " * LENGTH, np.uint8)
    starts = (chosen * LENGTH % 10).tolist()
    assert found.tolist() == [text[start : start + LENGTH].tolist() for start in starts]
    if not cost:
        pytest.skip("this file system keeps all of its files in memory")
    assert cost <= 2 * len(chosen) * LENGTH * size


def test_a_container_has_no_more_memory_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "PROC", tmp_path)
    assert free_bytes() == 2**63

    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\n")
    assert free_bytes() == 5 * 1024

    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes() == 5 * 1024
    (tmp_path / "memory.max").write_text("4000\n")
    assert free_bytes() == 4_000

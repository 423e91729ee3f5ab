import os
from pathlib import Path

import pytest

from tokflow.pools import machine
from tokflow.pools.machine import num_cores


@pytest.fixture(autouse=True)
def _four_cores_and_no_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "cpu").mkdir()


def test_all_cores_that_the_system_allows_are_counted():
    assert num_cores() == 4


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max", 4), ("50000", 1), ("100000", 1), ("250000", 3), ("900000", 4)],
)
def test_the_quota_of_a_container_is_counted_in_whole_cores(
    quota: str, expected: int, tmp_path: Path
):
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")

    assert num_cores() == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 4), ("150000", 2)])
def test_the_quota_is_also_found_where_linux_tells_it_in_the_older_way(
    quota: str, expected: int, tmp_path: Path
):
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")

    assert num_cores() == expected

"""Cores and memory of a process, and what its forks renew."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tokflow.pools import machine
from tokflow.pools.machine import PeakMemory, num_cores, renew_in_forks
from tokflow_tests.pools.forked import forked


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


HOLD = (
    "import time; held = bytearray(b'1') * 200_000_000; print(len(held), flush=True); time.sleep(9)"
)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
def test_the_peak_has_the_memory_of_processes_that_were_started():
    with PeakMemory() as alone:
        pass
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with PeakMemory() as both:
            pass
        child.kill()

    assert alone.num_bytes is not None
    assert both.num_bytes is not None
    assert both.num_bytes - alone.num_bytes > 190_000_000


class Locked:
    """A lock, and how often it was renewed."""

    def __init__(self) -> None:
        self.lock, self.num_renewed = threading.Lock(), 0
        renew_in_forks(self, Locked.renew)

    def renew(self) -> None:
        self.lock, self.num_renewed = threading.Lock(), self.num_renewed + 1


def test_a_forked_process_renews_what_threads_hold_and_this_one_does_not():
    first, second = Locked(), Locked()

    with first.lock, second.lock:
        found = forked(lambda: [each.lock.acquire(timeout=0) for each in (first, second)])
        assert found == [True, True]
        assert first.lock.locked()
    assert first.num_renewed == 0
    assert forked(lambda: (forked(lambda: first.num_renewed), first.num_renewed)) == (2, 1)

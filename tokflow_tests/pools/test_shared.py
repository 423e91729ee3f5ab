"""What many tasks have in common goes to each process once, and nothing of it stays behind."""

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tokflow.pools.local import LocalPool
from tokflow.pools.pool import Advance, Shared, packed_for_machines, take_shared

_opened = 0


class Counted:
    """A value that counts in each process how often it is opened there."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.text,)


def _open(text: str) -> Counted:
    global _opened
    _opened += 1
    return Counted(text)


def num_opened() -> int:
    """Return how often this process has opened one."""
    return _opened


def look(task: tuple[Shared[Counted], int], advance: Advance) -> tuple[int, str, int, int]:
    shared, number = task
    return number, shared.value.text, os.getpid(), _opened


def test_a_process_opens_it_once_and_its_file_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shared = Shared(Counted("common"), num_tasks=9)
    with LocalPool(2) as pool:
        results = [result for _, result in pool.map(look, [(shared, n) for n in range(9)])]
        assert len(list(tmp_path.glob("tokflow-*"))) == 1
    del shared

    numbers, texts, processes, opened = zip(*results, strict=True)
    assert sorted(numbers) == [*range(9)]
    assert {*texts} == {"common"}
    assert os.getpid() not in processes
    assert {*opened} == {1}
    assert not list(tmp_path.glob("tokflow-*"))


def test_that_of_one_task_travels_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert pickle.loads(pickle.dumps(Shared("own"))).value == "own"
    assert not list(tmp_path.glob("tokflow-*"))


def test_to_another_machine_it_goes_beside_its_tasks():
    shared, sent = Shared(Counted("x" * 1000), num_tasks=2), {}

    def share(each: Shared[Any]) -> None:
        sent[each.key] = packed_for_machines(each.value)

    packed = [packed_for_machines((shared, n), share) for n in range(2)]

    before = _opened
    for each in packed:
        take_shared(sent, sent.__getitem__)
        opened, _ = pickle.loads(each)
        assert opened.value.text == "x" * 1000
        assert len(each) < 200
    assert _opened == before + 1
    assert pickle.loads(packed_for_machines(shared)).value.text == "x" * 1000
    take_shared((), sent.__getitem__)

"""What many tasks have in common goes to each process once, and nothing of it stays behind."""

import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ConfigError, RawFileError
from tokflow.pools.local import LocalPool
from tokflow.pools.pool import Advance, Shared, packed_for_machines, take_shared
from tokflow.pools.ray_pool import _explained, _Receipt
from tokflow.raw.files import changed_error, stamp_of
from tokflow.store.remote import place_at

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


def test_a_path_of_a_url_is_one_in_the_cache_of_who_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "here"))
    root = place_at("s3://bucket/store").root
    packed = packed_for_machines([root, root / "a" / "_tokflow/manifest.json", tmp_path / "local"])
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "there"))

    opened = pickle.loads(packed)

    there = tmp_path / "there" / root.name
    assert opened == [there, there / "a" / "_tokflow/manifest.json", tmp_path / "local"]
    assert str(tmp_path / "here").encode() not in packed


RECEIPT = _Receipt(result=b"", num_documents=0, num_bytes=0, node="node-7", unseen=[])


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, RawFileError]:
    """A raw file of the driver, and the error of a node with a copy on its own disk."""
    raw, copy = tmp_path / "a.jsonl", tmp_path / "copy"
    raw.write_text("text")
    shutil.copy2(raw, copy)
    return raw, changed_error(raw, stamp_of(raw), stamp_of(copy))


def test_a_copy_of_a_raw_file_on_a_node_is_told_as_a_copy(copied: tuple[Path, RawFileError]):
    raw, error = copied

    told = _explained(error, RECEIPT)

    assert isinstance(told, ConfigError)
    assert str(told).startswith(
        f"{raw}: expected one file that every node of the Ray cluster has under this name, found "
        "another one on node-7, such as a copy on its own disk; put raw files and the store"
    )


def test_a_raw_file_that_changed_is_told_as_one(copied: tuple[Path, RawFileError]):
    raw, error = copied
    raw.write_text("another text")

    assert _explained(error, RECEIPT) is error


def test_an_error_of_what_is_no_path_is_told_as_it_is():
    long = f"/{'a' * 300}"
    error = RawFileError(where=long, expected="a", found="b", remedy="c")

    assert _explained(error, RECEIPT._replace(unseen=[long])) is error

"""What a driver says of errors on the nodes of a Ray cluster; `on_ray` has the tests on one."""

import shutil
from pathlib import Path

import pytest

from tokflow.errors import ConfigError, RawFileError
from tokflow.pools.ray_pool import _explained, _Receipt
from tokflow.raw.files import changed_error, stamp_of

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

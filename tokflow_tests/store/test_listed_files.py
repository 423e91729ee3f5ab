"""The files that a manifest lists are compared with those that are there."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify import verify_path
from tokflow.errors import CorruptOutputError
from tokflow.store.listed_files import broken_files
from tokflow.store.manifest import folder_of_manifest
from tokflow.store.store import Store, StoredOutput
from tokflow_tests.tiny import build, declare


@pytest.fixture
def output(tmp_path: Path) -> StoredOutput:
    """The tokens of a file."""
    dataset = declare(tmp_path, {"a.jsonl": ["one", "two"]})
    build(dataset)
    [manifest] = dataset.folder.glob("tokens/a.jsonl/*/_tokflow/manifest.json")
    return Store(tmp_path).read(folder_of_manifest(manifest))


def test_an_output_is_intact_until_a_file_is_cut_short_or_gone(output: StoredOutput):
    tokens = output.file("tokens.bin")
    assert output.store.is_intact(output.folder)

    tokens.write_bytes(tokens.read_bytes()[:-1])

    assert not output.store.is_intact(output.folder)
    with pytest.raises(CorruptOutputError, match="bytes, found "):
        output.store.check(output)
    tokens.unlink()
    assert not output.store.is_intact(output.folder)
    with pytest.raises(CorruptOutputError, match=r"tokens\.bin: expected .*, found no file"):
        output.store.check(output)


def test_each_file_that_is_not_as_listed_is_named(output: StoredOutput):
    for name in output.manifest.files:
        output.file(name).unlink()

    broken = broken_files(output.folder, output.manifest)

    assert [of.where for of in broken] == [f"{output.folder}/{of}" for of in output.manifest.files]
    assert {error.found for error in broken} == {"no file"}


def test_of_a_file_that_may_not_be_read_the_permission_is_to_be_changed(
    output: StoredOutput, monkeypatch: pytest.MonkeyPatch
):
    path, open_ = output.folder / "tokens.bin", Path.open

    def refuse(opened: Path, *how: Any, **more: Any) -> Any:
        if opened == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(opened))
        return open_(opened, *how, **more)

    monkeypatch.setattr(Path, "open", refuse)  # for root may read all
    [found] = verify_path(output.folder)

    assert found.problems == (
        f"{path}: expected permission to use it, found Permission denied; change its owner or "
        "permissions, or name another place",
    )

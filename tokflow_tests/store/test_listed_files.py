"""The files that a manifest lists are compared with those that are there."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify.verification import verify_path
from tokflow.errors import CorruptOutputError
from tokflow.store.listed_files import broken_files, check_sizes, is_intact
from tokflow.store.manifest import Manifest, folder_of_manifest, read_manifest
from tokflow_tests.tiny import build, copy_of, declare


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset = declare(tmp_path_factory.mktemp("built"), {"a.jsonl": ["one", "two"]})
    build(dataset)
    [manifest] = dataset.folder.glob("tokens/a.jsonl/*/_tokflow/manifest.json")
    return folder_of_manifest(manifest)


@pytest.fixture
def output(built: Path, tmp_path: Path) -> tuple[Path, Manifest]:
    """A folder with the tokens of a file, and their manifest."""
    folder = copy_of(built, tmp_path)
    return folder, read_manifest(folder)


Output = tuple[Path, Manifest]


def test_an_output_is_intact_until_a_file_is_cut_short_or_gone(output: Output):
    folder, manifest = output
    tokens = folder / "tokens.bin"
    num_bytes = tokens.stat().st_size
    assert is_intact(folder)
    check_sizes(folder, manifest)

    tokens.write_bytes(tokens.read_bytes()[:-1])

    assert not is_intact(folder)
    said = rf"expected {num_bytes} bytes, found {num_bytes - 1};"
    with pytest.raises(CorruptOutputError, match=said):
        check_sizes(folder, manifest)
    tokens.unlink()
    assert not is_intact(folder)
    with pytest.raises(CorruptOutputError, match=r"tokens\.bin: expected .*, found no file"):
        check_sizes(folder, manifest)


def test_other_bytes_of_the_same_size_are_seen_by_checksums_alone(output: Output):
    folder, manifest = output
    assert broken_files(folder, manifest) == []
    tokens = folder / "tokens.bin"
    tokens.write_bytes(bytes([tokens.read_bytes()[0] ^ 1]) + tokens.read_bytes()[1:])

    check_sizes(folder, manifest)
    [broken] = broken_files(folder, manifest)

    assert str(broken).startswith(f"{tokens}: expected sha256 ")


def test_each_file_that_is_not_as_listed_is_named(output: Output):
    folder, manifest = output
    for name in manifest.files:
        (folder / name).unlink()

    broken = broken_files(folder, manifest)

    assert [error.where for error in broken] == [f"{folder}/{name}" for name in manifest.files]
    assert all("found no file; remove the folder" in str(error) for error in broken)


def test_of_a_file_that_may_not_be_read_the_permission_is_to_be_changed(
    output: Output, monkeypatch: pytest.MonkeyPatch
):
    folder, _ = output
    path, open_ = folder / "tokens.bin", Path.open

    def refuse(opened: Path, *how: Any, **more: Any) -> Any:
        if opened == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(opened))
        return open_(opened, *how, **more)

    monkeypatch.setattr(Path, "open", refuse)  # for root may read all
    [found] = verify_path(folder)

    assert found.problems == (
        f"{path}: expected permission to use it, found Permission denied; change its owner or "
        "permissions, or name another place",
    )

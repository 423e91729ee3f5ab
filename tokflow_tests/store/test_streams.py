import shutil
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from tokflow.store import streams
from tokflow.store.manifest import checksum
from tokflow.store.streams import HashedWriter
from tokflow_tests.disks import full_disk


@pytest.mark.parametrize("at_once", [1, 7, 10_000_000])
def test_the_entry_is_that_of_the_file(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streams, "HASH_BYTES", at_once)
    monkeypatch.setattr(streams, "SYNC_BYTES", at_once)
    rows = np.arange(6, dtype="<u2").reshape(2, 3)

    with HashedWriter(tmp_path / "new") as file:
        for data in (b"ab", b"", rows, np.zeros((0, 3), dtype="<i4"), bytearray(9)):
            file.write(data)

    assert (tmp_path / "new").read_bytes() == b"ab" + rows.tobytes() + bytes(9)
    assert file.entry() == checksum(tmp_path / "new")
    assert file.tell() == 23


def test_what_the_disk_refuses_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(streams, "SYNC_BYTES", 1)
    monkeypatch.setattr(streams.os, "fsync", refuse)

    with pytest.raises(OSError, match="Input/output"), HashedWriter(tmp_path / "new") as file:
        file.write(b"ab")
    assert file.closed


def test_a_disk_that_is_full_when_the_last_bytes_are_written_is_an_error(tmp_path: Path):
    with (
        full_disk(1_000),
        pytest.raises(OSError, match="File too large"),
        HashedWriter(tmp_path / "new") as file,
    ):
        assert file.write(bytes(2_000)) == 2_000  # which wait in memory until the file is closed


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_changes_once_it_is_copied_does_not_pass_for_the_copy(
    is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, copy = tmp_path / "source", shutil.copyfileobj

    def then_change(read: BinaryIO, written: BinaryIO) -> None:
        copy(read, written)
        if is_replaced:
            source.unlink()
        with source.open("ab") as file:
            file.write(b"def")

    source.write_bytes(b"abc")
    monkeypatch.setattr(shutil, "copyfileobj", then_change)
    with HashedWriter(tmp_path / "new") as file:
        entry = file.copy(source)

    assert (tmp_path / "new").read_bytes() == b"abc"
    assert entry != checksum(source)

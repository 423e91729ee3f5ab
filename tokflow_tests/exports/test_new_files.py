import errno
from pathlib import Path

import pytest

from tokflow.exports import new_files
from tokflow.exports.new_files import copy_file, open_hashed, take_hashed
from tokflow.store.manifest import checksum


def test_files_are_hashed_once_unless_they_are_written_to_again(tmp_path: Path):
    for name in ("kept", "changed", "gone"):
        with open_hashed(tmp_path / "in" / name) as file:
            file.write(b"abc")
    with (tmp_path / "in" / "changed").open("ab") as file:
        file.write(b"d")
    (tmp_path / "in" / "gone").unlink()
    with open_hashed(tmp_path / "in" / "empty") as file:
        pass

    assert take_hashed(tmp_path / "other") == {}
    assert take_hashed(tmp_path) == {
        "in/kept": checksum(tmp_path / "in" / "kept"),
        "in/empty": checksum(tmp_path / "in" / "empty"),
    }
    assert take_hashed(tmp_path) == {}


@pytest.mark.parametrize("refused", [None, errno.EXDEV])
def test_a_copy_has_the_entry_of_its_source_unless_it_is_cut_short(
    refused: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*arguments: int) -> int:
        raise OSError(refused, "refused")

    if refused:
        monkeypatch.setattr(new_files.os, "copy_file_range", refuse)
    source = tmp_path / "source"
    source.write_bytes(b"abc" * 1000)
    entry = checksum(source)

    copy_file(source, entry, tmp_path / "new")

    assert (tmp_path / "new").read_bytes() == source.read_bytes()
    assert take_hashed(tmp_path) == {"new": entry}

    source.write_bytes(b"abc")
    copy_file(source, entry, tmp_path / "new")

    assert take_hashed(tmp_path) == {}

import errno
import os
from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError
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


def kernel_copy(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int, refused: int | None = None
) -> None:
    """Let the kernel copy so many bytes of each file, then say that it has ended, or refuse."""
    copy = os.copy_file_range

    def some(source: int, file: int, _: int) -> int:
        left = num_bytes - os.fstat(file).st_size
        if left == 0 and refused:
            raise OSError(refused, "refused")
        return copy(source, file, left) if left else 0

    monkeypatch.setattr(new_files.os, "copy_file_range", some)


@pytest.mark.parametrize("num_bytes", [0, 1000, 3000])
@pytest.mark.parametrize("refused", [None, errno.EXDEV, errno.EINVAL])
def test_a_copy_is_whole_however_much_of_it_the_kernel_makes(
    num_bytes: int, refused: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = tmp_path / "source"
    source.write_bytes(b"abc" * 1000)
    entry = checksum(source)
    kernel_copy(monkeypatch, num_bytes, refused)

    copy_file(source, entry, tmp_path / "new")

    assert (tmp_path / "new").read_bytes() == source.read_bytes()
    assert take_hashed(tmp_path) == {"new": entry}


@pytest.mark.parametrize("content", [b"", b"ab", b"abcd"])
def test_a_copy_of_another_size_than_its_source_should_have_is_an_error(
    content: bytes, tmp_path: Path
):
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    entry = checksum(source)
    source.write_bytes(content)

    with pytest.raises(CorruptOutputError, match=f"3 bytes.* found {len(content)}") as failed:
        copy_file(source, entry, tmp_path / "new")

    assert failed.value.where == str(source)
    assert take_hashed(tmp_path) == {}

from pathlib import Path

from tokflow.exports.new_files import new_file, take_hashed
from tokflow.store.manifest import checksum


def test_files_are_hashed_once_unless_they_are_written_to_again(tmp_path: Path):
    for name in ("kept", "changed", "gone"):
        with new_file(tmp_path / "in" / name) as file:
            file.write(b"abc")
    with (tmp_path / "in" / "changed").open("ab") as file:
        file.write(b"d")
    (tmp_path / "in" / "gone").unlink()
    with new_file(tmp_path / "in" / "empty") as file:
        pass

    assert take_hashed(tmp_path / "other") == {}
    assert take_hashed(tmp_path) == {
        "in/kept": checksum(tmp_path / "in" / "kept"),
        "in/empty": checksum(tmp_path / "in" / "empty"),
    }
    assert take_hashed(tmp_path) == {}

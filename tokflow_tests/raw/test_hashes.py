import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ChangedFileError
from tokflow.raw import hashes
from tokflow.raw.hashes import HashCache, HashedFile, hash_file, stamp_of

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def hashed_file(folder: Path) -> HashedFile:
    path = folder / "raw"
    path.write_bytes(CONTENT)
    return HashedFile.of(path, stamp_of(path), HashCache(folder / "store"))


def bytes_read_for_sha256(file: HashedFile) -> int:
    """Return how many bytes are read when the checksum is asked for, which is the right one."""
    first = file._hashed[1]
    assert file.sha256() == SHA256
    return file._hashed[1] - first


def test_what_was_read_in_order_is_not_read_again_for_the_checksum(tmp_path: Path):
    file = hashed_file(tmp_path)

    with file.open("rb") as start:
        assert start.read(10) == CONTENT[:10]
    with file.open("rb", buffering=0) as whole:  # of which the buffer above had a part
        whole.seek(5)
        assert whole.read(9_000) == CONTENT[5:9_005]
        whole.seek(10_000)  # a look at what is further on
        whole.read(100)
        whole.seek(9_000)
        assert whole.readall() == CONTENT[9_000:]

    assert not file.is_hashed
    assert bytes_read_for_sha256(file) == 0
    assert file.is_hashed


def test_what_was_not_read_is_read_for_the_checksum(tmp_path: Path):
    file = hashed_file(tmp_path)
    with file.open("rb", buffering=0) as start:
        start.read(1_000)

    assert bytes_read_for_sha256(file) == len(CONTENT) - 1_000


def test_a_file_that_another_process_has_read_is_not_read_here(tmp_path: Path):
    file = hashed_file(tmp_path)
    there = pickle.loads(pickle.dumps(file))

    assert bytes_read_for_sha256(there) == len(CONTENT)
    assert bytes_read_for_sha256(file) == 0
    assert there == file == Path(file)
    assert len(Path(tmp_path / "store/hashes.jsonl").read_text().split()) == 6


def test_a_file_that_changes_while_it_is_read_has_no_checksum(tmp_path: Path):
    file = hashed_file(tmp_path)
    with file.open("rb", buffering=0) as start:
        start.read(1_000)
    Path(file).write_bytes(bytes(len(CONTENT)))

    with pytest.raises(ChangedFileError, match="another version of the same 10,240 bytes"):
        file.sha256()
    assert not (tmp_path / "store").exists()


def test_a_file_whose_mode_changes_while_it_is_read_has_its_checksum(tmp_path: Path):
    file = hashed_file(tmp_path)
    os.utime(file, ns=(0, 0))

    assert file.sha256() == SHA256
    assert not (tmp_path / "store").exists()  # its stamp is another


def test_caches_that_are_open_at_once_share_one_file(tmp_path: Path):
    paths = [tmp_path / name for name in "ab"]
    caches = [HashCache(tmp_path / "store") for _ in range(2)]
    for cache, path in zip(caches, paths, strict=True):
        path.write_bytes(b"abc")
        cache.keep(path, *hash_file(path))

    caches[0].refresh()

    for cache in (caches[0], HashCache(tmp_path / "store")):
        found = [cache.find(path, stamp_of(path)) for path in paths]
        assert found == [hashlib.sha256(b"abc").hexdigest()] * 2


def test_what_is_read_while_the_checksum_is_worked_out_does_not_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = hashed_file(tmp_path)
    hash_on = hashes._hash_on

    def hash_while_another_reads(*arguments: Any) -> int:
        with file.open("rb", buffering=0) as reader:
            reader.read(5)
            found = hash_on(*arguments)
            reader.read()
        return found

    monkeypatch.setattr(hashes, "_hash_on", hash_while_another_reads)

    assert file.sha256() == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_checksum_that_could_not_be_worked_out_is_right_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = hashed_file(tmp_path)
    hash_on = hashes._hash_on

    def fail_behind_a_block(path: Path, digest: Any, *_: Any) -> int:
        digest.update(b"a block")
        raise OSError("gone")

    monkeypatch.setattr(hashes, "_hash_on", fail_behind_a_block)
    with pytest.raises(OSError, match="gone"):
        file.sha256()
    monkeypatch.setattr(hashes, "_hash_on", hash_on)

    assert file.sha256() == hashlib.sha256(file.read_bytes()).hexdigest()

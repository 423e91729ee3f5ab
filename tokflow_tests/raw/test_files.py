import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ChangedFileError, RawFileError
from tokflow.raw import RawFile, RawSource, files, hashes
from tokflow.raw.hashes import HashCache, HashedFile, hash_file, stamp_of
from tokflow_tests.raw.fetching import read_raw_file

LONG_AGO = 1_000_000_000
SHA256_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def make_source(folder: Path, content: bytes = b"abc", *, name: str = "a.txt") -> RawSource:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return RawSource(key=name, url=str(path), is_local=True)


def read(source: RawSource, folder: Path) -> tuple[RawFile, int]:
    """Return the raw file and how many bytes of it had to be hashed."""
    hashed = [0]
    raw = read_raw_file(
        source, store=folder / "store", progress=lambda done, _: hashed.append(done)
    )
    return raw, hashed[-1]


def message(folder: Path, source: RawSource) -> str:
    with pytest.raises(RawFileError) as raised:
        read_raw_file(source, store=folder / "store")
    return str(raised.value)


def test_a_file_longer_than_a_block_is_hashed_whole(tmp_path: Path):
    content = bytes(range(256)) * 40_000
    calls: list[tuple[int, int | None]] = []

    source = make_source(tmp_path, content)
    raw = read_raw_file(source, store=tmp_path / "store", progress=lambda *call: calls.append(call))

    assert raw.sha256 == hashlib.sha256(content).hexdigest()
    assert calls == [(4_194_304, 10_240_000), (8_388_608, 10_240_000), (10_240_000, 10_240_000)]


def test_an_unchanged_file_is_not_hashed_again(tmp_path: Path):
    source = make_source(tmp_path)

    first, hashed_first = read(source, tmp_path)
    second, hashed_second = read(source, tmp_path)

    assert (first.key, first.path, first.num_bytes) == ("a.txt", tmp_path / "a.txt", 3)
    assert first.sha256 == SHA256_OF_ABC
    assert (hashed_first, hashed_second) == (3, 0)
    assert second == first


def test_a_file_changed_to_the_same_size_and_mtime_is_hashed_again(tmp_path: Path):
    read(make_source(tmp_path, b"abc"), tmp_path)

    raw, hashed = read(make_source(tmp_path, b"xyz"), tmp_path)

    assert hashed == 3
    assert raw.sha256 == hashlib.sha256(b"xyz").hexdigest()


@pytest.fixture
def whole_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what lets all files be on a server that keeps whole seconds, by its own clock."""
    monkeypatch.setattr(files, "RACY_SECONDS", 2.0)

    def serve(seconds_behind: int) -> None:
        def told(status: os.stat_result) -> os.stat_result:
            fields = {name: getattr(status, name) for name in dir(status) if name[:3] == "st_"}
            ctime = status.st_ctime_ns // 10**9 - seconds_behind
            fields |= {"st_ctime": ctime, "st_ctime_ns": ctime * 10**9}
            return os.stat_result([*status[:9], ctime], fields)

        for name in ("stat", "fstat"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, real=real, **b: told(real(*a, **b)))

    return serve


@pytest.mark.parametrize("seconds_behind", [0, 10, -10])
def test_a_file_that_was_just_written_is_hashed_again_whatever_its_times_are(
    seconds_behind: int, whole_seconds: Callable[[int], None], tmp_path: Path
):
    whole_seconds(seconds_behind)
    first, _ = read(make_source(tmp_path, b"abc"), tmp_path)

    second, hashed = read(make_source(tmp_path, b"xyz"), tmp_path)  # as `cp -p` replaces it

    assert hashed == 3
    assert second.sha256 == hashlib.sha256(b"xyz").hexdigest()
    with pytest.raises(RawFileError, match="found another version of the same 3 bytes"):
        first.check_unchanged()


@pytest.mark.parametrize(
    "damage",
    [b"\xff no JSON" * 100, b'[1]\n{"a": 2}\nnull\n7', b'["/a', b"\n" + b"[" * 100_000],
    ids=["no JSON", "other JSON", "cut off", "nested"],
)
def test_a_cache_that_is_damaged_costs_a_look_at_what_is_lost(damage: bytes, tmp_path: Path):
    kept, lost = make_source(tmp_path, name="kept"), make_source(tmp_path, name="lost")
    cache = tmp_path / "store/hashes.jsonl"
    for source in (kept, lost):
        read(source, tmp_path)
    first, second = cache.read_bytes().strip().split(b"\n\n")
    cache.write_bytes(first + b"\n" + second[:-9] + damage)

    found = [read(source, tmp_path) for source in (kept, lost, kept, lost)]

    assert {raw.sha256 for raw, _ in found} == {SHA256_OF_ABC}
    assert [hashed for _, hashed in found] == [0, 3, 0, 0]


def test_a_store_that_cannot_be_written_costs_only_time(tmp_path: Path, caplog):
    source = make_source(tmp_path)
    (tmp_path / "store").write_text("a file where the folder should be")

    assert read(source, tmp_path)[0].sha256 == SHA256_OF_ABC
    assert len(caplog.messages) == 1


def test_a_missing_file_is_an_error(tmp_path: Path):
    source = make_source(tmp_path)
    Path(source.url).unlink()

    assert "found no such file;" in message(tmp_path, source)


def test_a_file_that_grows_or_is_replaced_while_it_is_hashed_is_an_error(tmp_path: Path):
    def grow(done: int, _: int | None) -> None:
        if done < 5_000_000:
            with Path(source.url).open("ab") as file:
                file.write(b"more")

    def replace(*_: int | None) -> None:
        (tmp_path / "new").write_bytes(bytes(5_000_000))
        (tmp_path / "new").replace(source.url)

    for change, found in (
        (grow, "found 5,000,000 bytes before and 5,000,004 after;"),
        (replace, "found another version of the same 5,000,000 bytes;"),
    ):
        source = make_source(tmp_path, bytes(5_000_000))
        with pytest.raises(RawFileError, match=found):
            read_raw_file(source, store=tmp_path / "store", progress=change)


def test_a_raw_file_that_changed_since_it_was_hashed_is_an_error(tmp_path: Path):
    raw, _ = read(make_source(tmp_path, b"abc"), tmp_path)

    raw.path.chmod(0o600)
    raw.check_unchanged()
    for content in (b"abcd", b"xyz"):
        make_source(tmp_path, content)
        with pytest.raises(RawFileError, match="that stays as it is while it is read"):
            raw.check_unchanged()
    raw.path.unlink()
    with pytest.raises(RawFileError, match="found no such file"):
        raw.check_unchanged()


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

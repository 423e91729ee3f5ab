"""Equal files of a dataset are one file, which nobody may write to."""

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.errors import CorruptOutputError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.store import integrity
from tokflow.store.atomic import new_folder
from tokflow.store.integrity import Reading
from tokflow.store.listed_files import broken_files, link_file
from tokflow.store.manifest import FileEntry, Manifest, Recipe, checksum, checksums, write_manifest
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import walk
from tokflow_tests.disks import flip
from tokflow_tests.tiny import build, declare

TEXTS = {"a.jsonl": ["one two three " * 2500], "b.jsonl": ["four " * 3000]}
PARTS = {"train": {"fraction": 1.0}}


def is_killed(dataset: Path, name: str, step: int) -> bool:
    """Write an export of this name, whose bytes are those of all, in a process that is killed at a
    step; return whether it was."""
    if (process := os.fork()) == 0:
        left = [step]

        def kill(event: str, arguments: tuple[object, ...]) -> None:
            if event in ("os.link", "os.chmod", "os.rename", "open") and ".tmp" in str(
                arguments[0]
            ):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        recipe = Recipe(stage="export", version=1, config={"name": name}, parents={})
        folder = dataset / "exports" / name / recipe.fingerprint[:16]
        with new_folder(folder, Store(dataset.parent)) as temporary:
            (temporary / "tokens").write_bytes(b"token" * 20_000)
            files = checksums(temporary)
            manifest = Manifest(recipe=recipe, dataset="d", partition=None, counts={}, files=files)
            write_manifest(temporary, manifest, run={})
        os._exit(0)
    return os.waitpid(process, 0)[1] != 0


def declared(folder: Path, **fields: object) -> Dataset:
    texts = TEXTS if not (folder / "raw").exists() else None
    return declare(folder, texts, **{"split": {"parts": PARTS}, "exports": ["bin"], **fields})


def files_called(dataset: Dataset, name: str) -> list[Path]:
    """Return the files of a name, the oldest first."""
    found = dataset.folder.rglob(name)
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def bytes_on_disk(folder: Path) -> int:
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({of.st_ino: of.st_size for of in files}.values())


def the(dataset: Dataset, name: str) -> Path:
    [path] = files_called(dataset, name)
    return path


def test_equal_files_of_exports_and_of_their_versions_are_one_file(tmp_path: Path):
    build(declared(tmp_path))
    renamed = {"format": "bin", "names": {"train": "all.bin"}}
    built = declared(tmp_path, exports=[renamed, "megatron"])
    build(built)

    names = "train.bin", "all.bin", "train_text_document.bin"
    ours, *others = (the(built, name) for name in names)
    assert all(ours.samefile(of) for of in others)
    assert ours.stat().st_nlink == 3
    assert not the(built, "train_text_document.idx").samefile(ours)


def test_an_export_that_is_the_tokens_of_one_file_is_that_file(tmp_path: Path):
    made = declare(tmp_path, {"a.jsonl": TEXTS["a.jsonl"]}, split={"parts": PARTS}, exports=["bin"])
    build(made)

    assert the(made, "train.bin").samefile(the(made, "tokens.bin"))


def test_large_files_of_finished_outputs_are_read_only_and_go_as_before(tmp_path: Path):
    made = declared(tmp_path)
    build(made)

    assert the(made, "train.bin").stat().st_mode & 0o222 == 0
    output = Store(tmp_path).read(the(made, "train.bin").parent)
    Store(tmp_path).remove_all([output.folder], seconds=0)
    assert not output.folder.exists()


def test_a_damaged_file_takes_the_place_of_no_whole_one(tmp_path: Path):
    build(declared(tmp_path))
    flip(the(declared(tmp_path), "train.bin"))
    both = declared(tmp_path, exports=["bin", "megatron"])
    build(both)

    assert not the(both, "train.bin").samefile(the(both, "train_text_document.bin"))
    assert [found.name for found in verify_dataset(both) if found.problems] == ["export bin"]


@pytest.mark.parametrize("has_blocks", [False, True])
def test_where_links_are_refused_blocks_are_shared_or_there_are_copies(
    has_blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A disk that can is seldom there: what the kernel does is done in its place."""
    cloned = []

    def clone(file: BinaryIO, request: int, source: int) -> None:
        assert request == 0x40049409
        cloned.append(Path(file.name).name)
        file.write(os.pread(source, 1 << 30, 0))
        file.flush()

    def refuse(*_: object) -> None:
        raise PermissionError

    build(declared(tmp_path))
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(fcntl, "ioctl", clone if has_blocks else refuse)
    both = declared(tmp_path, exports=["bin", "megatron"])
    build(both)

    ours, theirs = the(both, "train.bin"), the(both, "train_text_document.bin")
    assert ("train_text_document.bin.link" in cloned) == has_blocks
    assert ours.read_bytes() == theirs.read_bytes()
    assert not ours.samefile(theirs)
    assert theirs.stat().st_mode == ours.stat().st_mode
    assert not any(found.problems for found in verify_dataset(both))


def test_a_file_that_is_there_is_not_written_over_by_a_link(tmp_path: Path):
    for name in ("finished", "other"):
        (tmp_path / name).write_text(name)
    os.link(tmp_path / "finished", tmp_path / "new")

    with pytest.raises(FileExistsError):
        link_file(tmp_path / "other", tmp_path / "new", checksum(tmp_path / "other"))

    assert (tmp_path / "finished").read_text() == "finished"


def test_a_link_made_while_a_file_is_read_does_not_let_it_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = declared(tmp_path)
    build(made)
    path = the(made, "train.bin")
    output = Store(tmp_path).read(path.parent)
    monkeypatch.setattr(integrity, "arrived", {})
    read: list[str] = []
    compare = integrity.broken_file

    def note(folder: Path, name: str, entry: FileEntry) -> CorruptOutputError | None:
        read.append(name)
        return compare(folder, name, entry)

    monkeypatch.setattr(integrity, "broken_file", note)

    with Reading():
        output.file("train.bin")
        while not integrity.arrived:
            pass
        os.link(path, tmp_path / "of another process")
    with Reading():
        output.file("train.bin")

    assert read == ["train.bin"]


def test_verify_names_every_output_that_a_damaged_file_is_in(tmp_path: Path):
    both = declared(tmp_path, exports=["bin", "megatron"])
    build(both)
    path = flip(the(both, "train.bin"))

    [found] = [of for of in verify_path(path.parent) if of.problems]

    assert str(the(both, "train_text_document.bin")) in found.problems[0]
    damaged = [of.name for of in verify_dataset(both) if of.problems]
    assert damaged == ["export bin", "export megatron"]


def test_garbage_counts_a_file_with_its_last_name(tmp_path: Path):
    build(declared(tmp_path))
    build(declared(tmp_path, exports=[{"format": "bin", "names": {"train": "all.bin"}}]))
    build(declared(tmp_path, exports=[{"format": "bin", "names": {"train": "last.bin"}}]))
    last = declared(tmp_path, exports=[{"format": "bin", "names": {"train": "last.bin"}}])
    before = bytes_on_disk(last.folder)

    garbage = find_garbage(last, keep=0)

    assert len(garbage) == 2
    remove_all(last.store, garbage)
    assert before - bytes_on_disk(last.folder) == sum(garbage.values())
    assert sum(garbage.values()) < the(last, "last.bin").stat().st_size


@pytest.mark.filterwarnings("ignore")  # of a fork beside threads, also of lance
def test_what_is_killed_while_it_links_leaves_nothing_wrong(tmp_path: Path):
    dataset, num_kills = tmp_path / "d", 0
    assert not is_killed(dataset, "bin", 0)
    while is_killed(dataset, "megatron", num_kills + 1):
        num_kills += 1
        outputs = [of for of in walk(Store(tmp_path), dataset) if isinstance(of, StoredOutput)]
        assert [broken_files(of.folder, of.manifest) for of in outputs] == [[]] * len(outputs)

    ours, theirs = dataset.glob("exports/*/*/tokens")
    assert ours.samefile(theirs)
    assert ours.stat().st_nlink == 2
    assert num_kills > 8
    assert not list(tmp_path.rglob("*.tmp"))

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tokflow.errors import ForeignOutputError, TokflowError
from tokflow.store import atomic
from tokflow.store.atomic import NewFolders, is_leftover, new_file, new_folder
from tokflow.store.manifest import MANIFEST_NAME, checksums, is_complete, write_manifest
from tokflow.store.store import Store
from tokflow_tests.outputs import content, edit_manifest, make_manifest

HOLD_FOLDER_OPEN = """
import sys
from pathlib import Path
from tokflow.store.manifest import Manifest, Recipe, write_manifest
from tokflow.store.atomic import new_folder
from tokflow.store.store import Store

recipe = Recipe(stage="tokens", version=1, config={"eos": "last"}, parents={"raw": "0" * 64})
with new_folder(Path(sys.argv[1]), Store(Path(sys.argv[1]))) as folder:
    (folder / "half").write_text("of the other")
    write_manifest(folder, Manifest(recipe=recipe, dataset="d", partition=None, counts={}), run={})
    print("open", flush=True)
    sys.stdin.read()
"""


def write(folder: Path, text: str = "mine") -> None:
    with new_folder(folder, Store(folder)) as temporary:
        (temporary / "data").write_text(text)
        write_manifest(temporary, make_manifest(files=checksums(temporary)), run={})


def hold_open(folder: Path) -> subprocess.Popen[str]:
    """Return a process that has begun to write `folder`, and ends it when its input closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_FOLDER_OPEN, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_fails_leaves_no_empty_folder_and_takes_none_that_was_there(tmp_path: Path):
    (tmp_path / "mine").mkdir()

    for name in ("tokens/sub/a.jsonl/0", "mine/0"):
        with (
            pytest.raises(ValueError, match="bad"),
            new_folder(tmp_path / name, Store(tmp_path / name)),
        ):
            raise ValueError("bad")

    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


def write_and_fail(folder: Path) -> None:
    with new_folder(folder, Store(folder)) as temporary:
        write_manifest(temporary, make_manifest(), run={})
        raise KeyboardInterrupt


def test_a_folder_in_which_no_manifest_was_written_is_refused(tmp_path: Path):
    with (
        pytest.raises(
            TokflowError, match=r"expected a _tokflow/manifest\.json written last, found none"
        ),
        new_folder(tmp_path / "out", Store(tmp_path / "out")),
    ):
        pass

    assert names_in(tmp_path) == []


def test_a_killed_process_leaves_what_no_reader_accepts_and_the_next_writer_removes(
    tmp_path: Path,
):
    process = hold_open(tmp_path / "out")
    [unfinished] = tmp_path.iterdir()
    while_it_lives = is_leftover(unfinished, seconds=0)

    process.kill()
    process.communicate()

    assert not while_it_lives
    assert is_leftover(unfinished, seconds=10**6)
    assert not is_complete(tmp_path / "out")
    assert [name[:5] for name in names_in(tmp_path)] == [".out."]
    write(tmp_path / "out")
    assert names_in(tmp_path) == ["out"]


def test_what_a_living_process_writes_is_left_alone_and_the_first_to_end_stays(tmp_path: Path):
    process = hold_open(tmp_path / "out")

    write(tmp_path / "out")
    while_it_lives = names_in(tmp_path)
    process.communicate()

    assert len(while_it_lives) == 2
    assert process.returncode == 0
    assert names_in(tmp_path) == ["out"]
    assert (tmp_path / "out" / "data").read_text() == "mine"


def test_what_another_machine_writes_is_left_alone(tmp_path: Path):
    no_process_of_here = ".out.00000000.99999999.abcdef01.tmp"
    (tmp_path / no_process_of_here).mkdir()

    write(tmp_path / "out")

    assert names_in(tmp_path) == [no_process_of_here, "out"]


def test_what_has_another_name_is_not_taken_for_left(tmp_path: Path):
    for name in (".out.00000000.12.tmp", "out.00000000.12.abcdef01.tmp", ".out.tmp"):
        (tmp_path / name).mkdir()
        assert not is_leftover(tmp_path / name, seconds=-(10**6))
    (tmp_path / ".out.00000000.12.abcdef01.tmp").mkdir()
    assert is_leftover(tmp_path / ".out.00000000.12.abcdef01.tmp", seconds=-(10**6))


def test_containers_with_one_host_name_are_different_machines(monkeypatch: pytest.MonkeyPatch):
    here = atomic.machine.__wrapped__()
    monkeypatch.setattr(Path, "readlink", lambda _: Path("pid:[1]"))
    other = atomic.machine.__wrapped__()

    assert here != other


DAMAGES = {
    "its manifest is gone": lambda out: (out / MANIFEST_NAME).unlink(),
    "a file is cut short": lambda out: (out / "data").write_text("ol"),
    "it is another output": lambda out: edit_manifest(out, lambda f: f.update(version=2)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_stays_until_the_new_one_is_whole(
    damage: Callable[[Path], object], tmp_path: Path
):
    write(tmp_path / "out", "old")
    damage(tmp_path / "out")
    before = content(tmp_path / "out")

    with pytest.raises(KeyboardInterrupt):
        write_and_fail(tmp_path / "out")
    after_failure = content(tmp_path / "out")
    write(tmp_path / "out", "new")

    assert after_failure == before
    assert names_in(tmp_path) == ["out"]
    assert (tmp_path / "out" / "data").read_text() == "new"


def test_what_a_newer_tokflow_made_is_never_replaced(tmp_path: Path):
    write(tmp_path / "out", "theirs")
    edit_manifest(tmp_path / "out", lambda fields: fields.update(format_version=3))

    with pytest.raises(ForeignOutputError, match="found 3; use the tokflow that wrote it"):
        write(tmp_path / "out", "mine")

    assert names_in(tmp_path) == ["out"]
    assert (tmp_path / "out" / "data").read_text() == "theirs"


def test_every_file_is_on_disk_before_its_folder_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps: list[tuple[str, str]] = []
    sync, rename = atomic.sync, Path.rename

    def note_sync(path: Path) -> None:
        sync(path)
        steps.append(("sync", str(path)))

    def note_rename(path: Path, to: Path) -> Path:
        steps.append(("rename", str(path)))
        return rename(path, to)

    monkeypatch.setattr(atomic, "sync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)

    folder = tmp_path / "k" / "out"
    write(folder)

    mine = [step for step in steps if step[1].startswith(str(folder.parent))]
    *synced, renamed, parent = [
        (what, path.removeprefix(str(folder.parent))) for what, path in mine
    ]
    temporary = renamed[1]
    assert sorted(synced) == [
        ("sync", f"{temporary}{name}")
        for name in ("", "/_tokflow", "/_tokflow/manifest.json", "/data")
    ]
    assert synced[-1] == ("sync", temporary)
    assert renamed[0] == "rename"
    assert parent == ("sync", "")


def write_in(new: NewFolders, folder: Path) -> None:
    with new.writing(folder, Store(folder)) as temporary:
        write_manifest(temporary, make_manifest(), run={})


def test_folders_written_together_wait_for_the_disk_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sync, all_three = atomic.sync, threading.Barrier(3, timeout=20)

    def sync_with_the_others(path: Path) -> None:
        all_three.wait()
        sync(path)

    monkeypatch.setattr(atomic, "sync", sync_with_the_others)
    with NewFolders() as new:
        for name in "abc":
            write_in(new, tmp_path / name / "out")
        errors = new.commit()

    assert errors == {}
    assert [is_complete(tmp_path / name / "out") for name in "abc"] == [True] * 3


def test_a_folder_that_cannot_take_its_name_keeps_no_other_from_it(tmp_path: Path):
    write(tmp_path / "b")
    edit_manifest(tmp_path / "b", lambda fields: fields.update(format_version=3))

    with NewFolders() as new:
        for name in "abc":
            write_in(new, tmp_path / name)
        errors = new.commit()

    assert [type(error) for error in errors.values()] == [ForeignOutputError]
    assert list(errors) == [tmp_path / "b"]
    assert names_in(tmp_path) == ["a", "b", "c"]


def write_half_a_file(path: Path) -> None:
    with new_file(path) as temporary:
        temporary.write_text("half")
        raise OSError("disk full")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path):
    (tmp_path / "file").write_text("old")

    with pytest.raises(OSError, match="disk full"):
        write_half_a_file(tmp_path / "file")
    after_failure = (tmp_path / "file").read_text()
    with new_file(tmp_path / "file") as temporary:
        temporary.write_text("new")

    assert after_failure == "old"
    assert (tmp_path / "file").read_text() == "new"
    assert names_in(tmp_path) == ["file"]


def test_latest_leads_somewhere_at_every_moment(tmp_path: Path):
    write(tmp_path / "a")
    write(tmp_path / "b")
    Store(tmp_path).point_latest(tmp_path / "a")
    seen: set[str] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            try:
                seen.add(str((tmp_path / "latest").readlink()))
            except FileNotFoundError:
                seen.add("nothing")

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that the other thread looks between any two steps
    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(100):
        Store(tmp_path).point_latest(tmp_path / "b")
        Store(tmp_path).point_latest(tmp_path / "a")
    is_over.set()
    thread.join()
    sys.setswitchinterval(usual)

    assert seen <= {"a", "b"}
    assert names_in(tmp_path) == ["a", "b", "latest"]

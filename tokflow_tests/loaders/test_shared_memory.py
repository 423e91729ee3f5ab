"""One image of arrays for all processes of a machine: made once, read-only, gone with the last."""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.loaders import shared_memory
from tokflow.loaders.shared_memory import SharedArrays, shared_arrays

LAYOUT = {
    "token_ids": (np.dtype(np.uint16), (3, 5)),
    "empty": (np.dtype(np.int64), (0,)),
    "offsets": (np.dtype(np.int64), (4,)),
}

READER = """
import os, sys, time
from tokflow.loaders.shared_memory import shared_arrays
from tokflow_tests.loaders.test_shared_memory import LAYOUT, images, numbered

key, log, behaviour = sys.argv[1:]

def fill(arrays):
    with open(log, "a") as file:
        file.write("filled ")
    if behaviour == "waits":
        time.sleep(0.2)
    numbered(arrays)
    if "forks" in behaviour and os.fork() == 0:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    if "stuck" in behaviour:
        print("filling", flush=True)
        time.sleep(600)

if behaviour == "waits":
    print("ready", flush=True)
    sys.stdin.readline()
arrays = shared_arrays(key, LAYOUT, fill)
[image] = images().values()
print(arrays["token_ids"].sum(), arrays["offsets"].tolist(), image, flush=True)
sys.stdin.read()
"""
"""A process that prints what it reads and where from, and lives until its input ends."""


def numbered(arrays: SharedArrays) -> None:
    for array in arrays.values():
        array.flat = range(1, array.size + 1)


def refused(arrays: SharedArrays) -> None:
    pytest.fail("the image is there, and is filled again")


def images() -> dict[Path, str]:
    """Return the images that this process has open: the link to each, its name and its inode."""
    links = [Path(entry.path) for entry in os.scandir("/proc/self/fd")]
    names = {link: str(link.readlink()).split()[0] for link in links if link.exists()}
    return {
        link: f"{name.removeprefix('/memfd:')} {link.stat().st_ino}"
        for link, name in names.items()
        if name.startswith("/memfd:tokflow-")
    }


Started = Callable[..., subprocess.Popen[str]]


@contextmanager
def readers(folder: Path) -> Iterator[Started]:
    """Yield a function that starts a READER, and end all of them."""
    running: list[subprocess.Popen[str]] = []

    def start(behaviour: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", READER, str(folder), str(folder / "log"), behaviour]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        running.append(subprocess.Popen(command, text=True, **pipes))
        return running[-1]

    try:
        yield start
    finally:
        for process in running:
            process.kill()
            process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_that_ask_at_once_share_one_image_that_one_of_them_made(tmp_path: Path):
    with readers(tmp_path) as start:
        started = [start("waits") for _ in range(8)]
        assert {line_of(process) for process in started} == {"ready\n"}
        for process in started:
            tell(process)

        lines = {line_of(process) for process in started}

    assert len(lines) == 1
    assert lines.pop().startswith("120 [1, 2, 3, 4] tokflow-")
    assert (tmp_path / "log").read_text() == "filled "


def test_a_process_killed_while_it_fills_is_followed_by_one_that_waits(tmp_path: Path):
    with readers(tmp_path) as start:
        stuck = start("stuck")
        assert line_of(stuck) == "filling\n"
        waiting = [start(), start()]
        stuck.kill()

        lines = {line_of(process) for process in waiting}

    assert len(lines) == 1
    assert (tmp_path / "log").read_text() == "filled filled "


def test_nothing_is_left_of_an_image_whose_readers_are_killed(tmp_path: Path):
    with readers(tmp_path) as start:
        killed = [start(), start()]
        [name] = {line_of(process).split()[-2] for process in killed}
        for process in killed:
            process.kill()
            process.wait()

        assert shared_memory._found_image(name) is None
        assert line_of(start()).split()[-2] == name
    assert (tmp_path / "log").read_text() == "filled filled "


def test_a_process_forked_while_an_image_is_filled_does_not_keep_it_from_others(tmp_path: Path):
    with readers(tmp_path) as start:
        first = line_of(start("forks"))
        assert first

        assert line_of(start()) == first
    assert (tmp_path / "log").read_text() == "filled "


def test_a_process_forked_from_one_killed_while_it_fills_keeps_no_turn(tmp_path: Path):
    with readers(tmp_path) as start:
        stuck = start("forks and is stuck")
        assert line_of(stuck) == "filling\n"
        waiting = start()
        stuck.kill()

        assert line_of(waiting)
    assert (tmp_path / "log").read_text() == "filled filled "


def test_an_image_has_no_path_and_nobody_writes_to_it(tmp_path: Path):
    arrays = shared_arrays(str(tmp_path), LAYOUT, numbered)
    [(link, image)] = images().items()

    with pytest.raises(ValueError, match="read-only"):
        arrays["token_ids"][0] = 0
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        arrays["token_ids"].flags.writeable = True
    with pytest.raises(PermissionError), link.open("r+b") as file:
        file.write(b"0")
    assert fcntl.fcntl(int(link.name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    for folder in ("/dev/shm", tempfile.gettempdir()):
        assert not [path for path in Path(folder).iterdir() if image.split()[0] in path.name]


def test_an_image_lives_as_long_as_any_array_of_it(tmp_path: Path):
    row = shared_arrays(str(tmp_path), LAYOUT, numbered)["token_ids"][1]
    assert len(images()) == 1

    assert shared_arrays(str(tmp_path), LAYOUT, refused)["token_ids"][1].tolist() == row.tolist()
    del row
    assert images() == {}


def test_another_key_or_layout_is_another_image(tmp_path: Path):
    first = shared_arrays(str(tmp_path), LAYOUT, numbered)
    other_key = shared_arrays(f"{tmp_path} of others", LAYOUT, lambda arrays: None)
    wider = {**LAYOUT, "offsets": (np.dtype(np.int64), (5,))}
    other_layout = shared_arrays(str(tmp_path), wider, numbered)

    assert first["offsets"].tolist() == [1, 2, 3, 4]
    assert other_key["offsets"].tolist() == [0, 0, 0, 0]
    assert other_layout["offsets"].tolist() == [1, 2, 3, 4, 5]


def test_an_image_is_not_found_while_it_is_filled_nor_where_that_fails(tmp_path: Path):
    def failing(arrays: SharedArrays) -> None:
        numbered(arrays)
        for image in images().values():
            assert shared_memory._found_image(image.split()[0]) is None
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        shared_arrays(str(tmp_path), LAYOUT, failing)

    assert shared_arrays(str(tmp_path), LAYOUT, numbered)["offsets"].tolist() == [1, 2, 3, 4]


def test_an_image_made_before_a_process_takes_its_turn_is_found_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    takes_turn, made = shared_memory._takes_turn, []

    def after_another(turn: socket.socket, address: str) -> bool:
        monkeypatch.undo()
        made.append(shared_arrays(str(tmp_path), LAYOUT, numbered))
        return takes_turn(turn, address)

    monkeypatch.setattr(shared_memory, "_takes_turn", after_another)

    assert shared_arrays(str(tmp_path), LAYOUT, refused)["offsets"].tolist() == [1, 2, 3, 4]
    assert len(made) == 1


def test_an_image_of_another_user_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    user, theirs = os.geteuid(), shared_arrays(str(tmp_path), LAYOUT, lambda arrays: None)
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    ours = shared_arrays(str(tmp_path), LAYOUT, numbered)

    assert (theirs["offsets"].sum(), ours["offsets"].sum()) == (0, 10)


def test_a_process_of_another_user_that_takes_the_turn_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    def asks_again(arrays: SharedArrays) -> None:
        shared_arrays(str(tmp_path), LAYOUT, refused)

    with pytest.raises(ConfigError, match=f"found process {os.getpid()} of user {user}, which"):
        shared_arrays(str(tmp_path), LAYOUT, asks_again)


def test_more_than_the_free_memory_is_refused_before_any_is_taken():
    layout = {"token_ids": (np.dtype(np.uint32), (2**50,))}

    with pytest.raises(ConfigError, match=r"train in memory: expected 4,503,599\.6 GB"):
        shared_arrays("train", layout, refused)


def test_a_system_other_than_linux_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(ConfigError, match=r"expected Linux.*found darwin; leave `in_memory` out"):
        shared_arrays("train", LAYOUT, refused)

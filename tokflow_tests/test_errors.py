import errno
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokflow.errors import SYSTEM_ERRORS, BadDocumentError, message_of
from tokflow.store.atomic import new_file, new_folder
from tokflow.store.store import Store
from tokflow_tests.cli.commands import run
from tokflow_tests.disks import full_disk
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import TEXTS, write_raw, write_yaml

BUG = (
    "run `tokflow verify` to see whether the store is damaged; if it is not, this is a bug of "
    "tokflow, of which TOKFLOW_DEBUG=1 shows the traceback"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 kB; only root has one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounts a file system, which is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("number", SYSTEM_ERRORS, ids=errno.errorcode.get)
def test_an_error_of_the_system_names_the_file_and_what_to_do(number: int):
    expected, remedy = SYSTEM_ERRORS[number]

    told = message_of(OSError(number, "any words", "store/tokens.bin"), where="tokens a.jsonl")

    assert told == (f"store/tokens.bin: expected {expected}, found {os.strerror(number)}; {remedy}")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "tokens a.jsonl: expected a successful system call, found [Errno -2] Name or service "
            "not known; fix the cause",
        ),
        (
            FileNotFoundError(errno.ENOENT, "", b"\xff"),
            "\udcff: expected a file or folder, found No such file or directory; restore it, or "
            "correct the path",
        ),
        (
            MemoryError("8 GB"),
            "tokens a.jsonl: expected enough memory, found MemoryError: 8 GB; run it where there "
            "is more, or read less at once (documents.limit)",
        ),
        (
            KeyError("x"),
            f"tokens a.jsonl: expected to finish without an error, found KeyError: 'x'; {BUG}",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_four_parts(error: Exception, told: str):
    assert message_of(error, where="tokens a.jsonl") == told


def test_an_error_comes_whole_out_of_another_process():
    error = BadDocumentError(
        path=Path("a.jsonl"), row=3, line=4, where="a.jsonl, row 3", expected="a", found="b",
        remedy="c",
    )  # fmt: skip

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


def full(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"a" * 6_000)


def test_a_write_that_fails_names_the_file_that_was_to_be(tmp_path: Path):
    with full_disk(5_000):
        with pytest.raises(OSError, match="large") as of_file, new_file(tmp_path / "a") as path:
            full(path)
        with (
            pytest.raises(OSError, match="large") as of_folder,
            new_folder(tmp_path / "b", Store(tmp_path / "b")) as path,
        ):
            full(path / "tokens.bin")
        with (
            pytest.raises(OSError, match="such") as of_inner,
            new_folder(tmp_path / "b", Store(tmp_path / "b")) as path,
        ):
            full(path / "none" / "tokens.bin")

    assert of_file.value.filename == str(tmp_path / "a")
    assert of_folder.value.filename == str(tmp_path / "b")
    assert of_inner.value.filename == str(tmp_path / "b/none/tokens.bin")


def test_a_full_disk_is_said_with_the_output_it_was_for(disk: Path, tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["a" * 600_000]})
    config = write_yaml(tmp_path, store=str(disk))

    result = run("run", "--config", config)

    tokens = disk / "small/tokens/a.jsonl"
    message = result.stderr.splitlines()[0]
    assert result.exit_code == 1
    assert message.startswith(f"error: {tokens}/")
    assert message.endswith(
        ": expected room on the disk, found No space left on device; free some, or set `store` "
        "to another disk, and run again: finished outputs stay"
    )
    assert not tokens.exists()


def test_a_full_disk_of_the_cache_is_not_said_of_the_store(
    disk: Path,
    tmp_path: Path,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
):
    write_raw(tmp_path, {"a.jsonl": ["a" * 600_000]})
    store = f"{object_store.url}/store"
    config = write_yaml(tmp_path, store=store, exports=["bin"])
    monkeypatch.setenv("TOKFLOW_CACHE", str(disk / "cache"))

    result = run("run", "--config", config)

    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith(
        f"error: {disk}/cache: expected room on the disk of the cache of stores at URLs, found No "
        "space left on device; set TOKFLOW_CACHE to a folder on another disk, or make room: "
    )


def test_a_store_that_is_read_only_is_read_without_advice(disk: Path, tmp_path: Path):
    write_raw(tmp_path, TEXTS)
    config = write_yaml(tmp_path, store=str(disk), exports=["bin"])
    assert run("run", "--config", config).exit_code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

    for command in (["verify", "--config", config], ["plan", "--config", config], ["verify", disk]):
        result = run(*command)
        assert (result.exit_code, result.stderr) == (0, "")
    write_raw(tmp_path, {"new.jsonl": ["new"]})
    new = run("run", "--config", config)

    folder = disk / "small/tokens/new.jsonl"
    assert new.exit_code == 1
    assert new.stderr.splitlines()[0] == (
        f"error: {folder}: expected a place that can be written, found Read-only file system; "
        "mount it for writing, or set `store` to another place"
    )


def test_a_store_without_permission_is_said_as_that(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["one"]})
    config = write_yaml(tmp_path)
    (tmp_path / "store").mkdir(mode=0o555)
    as_other_users = []
    if os.geteuid() == 0:  # who may write anywhere
        as_other_users = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv takes root's rights away, and is not here")

    done = subprocess.run(
        [*as_other_users, sys.executable, "-m", "tokflow", "run", "--config", config],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == (
        f"error: {tmp_path}/store/small: expected permission to use it, found Permission denied; "
        "change its owner or permissions, or name another place"
    )

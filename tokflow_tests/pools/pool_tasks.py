"""Tasks of tests, in a module that workers import in no time."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokflow.errors import BadDocumentError
from tokflow.pools.machine import num_cores
from tokflow.pools.pool import Advance


class CannotTravelError(Exception):
    """An exception that pickle cannot make again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def double(task: int, advance: Advance) -> int:
    if task == 3:
        raise BadDocumentError(
            where="a", expected="b", found="c", remedy="d", path=Path("a"), row=3
        )
    if task == 4:
        raise CannotTravelError("of", " four")
    advance(1, task)
    return 2 * task


def die(task: Path, advance: Advance, *, times: int) -> int:
    """Be killed so many times, and count that in the file of the task."""
    if task.name == "well":
        return os.getpid()
    num_before = task.stat().st_size if task.exists() else 0
    if num_before < times:
        task.write_bytes(b"x" * (num_before + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return num_before


class PanicError(BaseException):
    """As what pyo3 raises."""


class Unopenable(int):
    """A task that pickle cannot make again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("one",)


def panic_at_0(task: int, advance: Advance) -> int:
    if task == 0:
        raise PanicError("index out of bounds")
    if task == 3:
        raise SystemExit
    return os.getpid()


def work(folder: Path, advance: Advance) -> None:
    """Leave a file while a long task is under way."""
    mark = folder / str(os.getpid())
    try:
        mark.touch()
        time.sleep(60)
    finally:
        time.sleep(0.3)
        mark.unlink(missing_ok=True)


def clean_up_slowly(folder: Path, advance: Advance) -> None:
    try:
        (folder / "busy").touch()
        with suppress(SystemExit):  # as of a transform, whose exit is a bad document
            time.sleep(60)
        (folder / "is not told to end").touch()
    finally:
        (folder / "cleaning up").touch()
        time.sleep(0.5)
        (folder / "busy").unlink()


def work_unless_well(task: Path, advance: Advance) -> None:
    if task.name != "well":
        work(task, advance)


def cores_of(task: int, advance: Advance) -> int:
    return num_cores()


def server_of(task: int, advance: Advance) -> tuple[int, int, str]:
    """Return the process that a worker was forked from, its threads, and a variable here."""
    server = os.getppid()
    num_threads = len(list(Path(f"/proc/{server}/task").iterdir()))
    return server, num_threads, os.environ.get("OF_NOW", "")

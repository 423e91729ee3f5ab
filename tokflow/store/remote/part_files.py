"""The names and the locks that files from URLs have until all of them is here."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def part_path(path: Path) -> Path:
    """Return the name that a file has until all of it is here."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def alone(path: Path) -> Iterator[Path | None]:
    """Yield the path that a file has until all of it is here, for this thread alone of all
    processes; None where another has fetched it meanwhile.

    A process that is killed lets go of it; the next one begins again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(path)
    while True:
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():
                part.unlink(missing_ok=True)
                yield None
                return
            if _has_inode(part, os.fstat(file.fileno()).st_ino):
                yield part
                return


def _has_inode(path: Path, inode: int) -> bool:
    """Return whether a file that was waited for still has its name."""
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False

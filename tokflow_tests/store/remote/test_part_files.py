"""A file from a URL has another name until all of it is here, and one writer of all processes."""

import fcntl
import os
import threading
import time
from pathlib import Path

from tokflow.store.remote.part_files import alone, part_path


def test_a_file_that_is_on_its_way_is_hidden_beside_its_place():
    assert part_path(Path("far/tokens.bin")) == Path("far/.tokens.bin.part")


def test_who_comes_first_writes_and_who_waited_finds_the_file(tmp_path: Path):
    path, seen = tmp_path / "new" / "tokens.bin", []

    def wait() -> None:
        with alone(path) as part:
            seen.append(part)

    with alone(path) as part:
        assert part == part_path(path)
        waiting = threading.Thread(target=wait)
        waiting.start()
        part.write_bytes(b"all of it")
        assert seen == []
        part.replace(path)
    waiting.join()

    assert seen == [None]
    assert [*path.parent.iterdir()] == [path]


def test_where_the_first_gave_up_the_next_has_the_file_of_that_name_to_itself(tmp_path: Path):
    path, is_locked = tmp_path / "tokens.bin", []

    def wait() -> None:
        with alone(path) as part, part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_locked.append(True)

    with alone(path) as part:
        waiting = threading.Thread(target=wait)
        waiting.start()
        while num_open(part) < 2:
            time.sleep(0.001)
        part.unlink()
    waiting.join()

    assert is_locked == [True]


def num_open(path: Path) -> int:
    """Return how often this process has a file open."""
    return sum(os.path.realpath(of) == str(path) for of in Path("/proc/self/fd").iterdir())

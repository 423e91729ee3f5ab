"""A file from a URL has another name until all of it is here, and one writer of all processes."""

import threading
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


def test_where_the_first_gave_up_the_next_begins_again_in_a_file_that_has_the_name(tmp_path: Path):
    path, seen = tmp_path / "tokens.bin", []

    def wait() -> None:
        with alone(path) as part:
            seen.append(part)
            part.write_bytes(b"whole")

    with alone(path) as part:
        waiting = threading.Thread(target=wait)
        waiting.start()
        part.write_bytes(b"half")
        part.unlink()
    waiting.join()

    assert seen == [part_path(path)]
    assert part_path(path).read_bytes() == b"whole"

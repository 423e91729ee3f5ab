import gzip
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from tokflow.exports.table_files import MAX_LEFT, Located, ReadOn
from tokflow_tests.pools.forked import forked

LINES = [b"a", b"bcd", b"", b"ef", b"g"]


class Opened:
    """Lines that count how often they are read from the beginning, and how many are taken."""

    def __init__(self) -> None:
        self.num_opened = self.num_taken = self.num_open = 0

    def __call__(self, path: Path) -> Iterator[bytes]:
        self.num_opened += 1
        self.num_open += 1
        try:
            for line in LINES:
                self.num_taken += 1
                yield line
        finally:
            self.num_open -= 1


def test_records_asked_for_in_order_are_read_once(path: Path):
    opened = Opened()
    taken = partial(ReadOn(opened).taken, path)

    found = [taken(slice(0, 2)), taken(slice(2, 4)), taken(slice(4, None))]

    assert found == [LINES[:2], LINES[2:4], LINES[4:]]
    assert (opened.num_opened, opened.num_taken, opened.num_open) == (1, 5, 0)


def test_threads_that_ask_for_one_after_another_read_on(path: Path):
    opened, begun, goes_on = Opened(), Event(), Event()

    def slowly(path: Path) -> Iterator[bytes]:
        for line in opened(path):
            yield line
            begun.set()
            assert goes_on.wait(10)

    taken = partial(ReadOn(slowly).taken, path)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(taken, slice(0, 2))
        assert begun.wait(10)
        second = threads.submit(taken, slice(2, 4))
        wait([second], timeout=0.1)
        goes_on.set()

    assert (first.result(), second.result()) == (LINES[:2], LINES[2:4])
    assert opened.num_opened == 1


def test_few_files_are_left_open(path: Path):
    opened = Opened()
    read_on = ReadOn(opened)

    for number in range(50):
        read_on.taken(path / str(number), slice(0, 2))

    assert (opened.num_opened, opened.num_open) == (50, MAX_LEFT)
    assert read_on.taken(path / "49", slice(2, 3)) == LINES[2:3]
    assert opened.num_opened == 50


def lines_of(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as file:
        yield from file


def test_a_forked_process_that_reads_on_does_not_move_its_parent_in_the_file(tmp_path: Path):
    path = tmp_path / "lines.gz"
    lines = [b"%d\n" % (number**9 % 1_000_003) for number in range(100_000)]
    path.write_bytes(gzip.compress(b"".join(lines), compresslevel=1))
    taken = partial(ReadOn(lines_of).taken, path)
    assert taken(slice(0, 10)) == lines[:10]

    rows = slice(10, 50_010)
    assert [forked(lambda: taken(rows) == lines[rows]) for _ in range(2)] == [True, True]
    assert taken(slice(10, None)) == lines[10:]


def located(path: Path) -> tuple[Located, list[int]]:
    """Return the lines of a file, and where ends were looked for."""
    looked: list[int] = []

    def end_of(data: mmap.mmap, start: int) -> int:
        looked.append(start)
        return data.find(b"\n", start) + 1 or len(data)

    return Located(path, end_of, bytes.splitlines), looked


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


def test_where_records_begin_is_found_once_and_no_further_than_needed(path: Path):
    records, looked = located(path)

    found = [records.taken(slice(1, 3)), records.taken(slice(0, 1)), records.taken(slice(2, 3))]

    assert found == [LINES[1:3], LINES[:1], LINES[2:3]]
    assert looked == [0, 2, 6]
    assert records.taken(slice(4, None)) == LINES[4:]
    assert looked == [0, 2, 6, 7]

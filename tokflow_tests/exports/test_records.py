import gzip
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from tokflow.errors import CorruptOutputError
from tokflow.exports.format import Arrays, Portion
from tokflow.exports.reading import Export
from tokflow.exports.records import MAX_LEFT, Located, ReadOn, Taken, portions_of_records
from tokflow_tests.outputs import make_manifest, stored
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

    found = [taken(0, 2), taken(2, 2), taken(4, None)]

    assert found == [LINES[:2], LINES[2:4], LINES[4:]]
    assert (opened.num_opened, opened.num_taken, opened.num_open) == (1, 5, 0)


def test_records_before_those_read_last_are_read_from_the_beginning_again(path: Path):
    opened = Opened()
    taken = partial(ReadOn(opened).taken, path)

    found = [taken(3, 1), taken(1, 2), taken(4, 1)]

    assert found == [LINES[3:4], LINES[1:3], LINES[4:]]
    assert opened.num_opened == 2


def test_threads_that_ask_for_one_after_another_read_on(path: Path):
    opened, begun, goes_on = Opened(), Event(), Event()

    def slowly(path: Path) -> Iterator[bytes]:
        for line in opened(path):
            yield line
            begun.set()
            assert goes_on.wait(10)

    taken = partial(ReadOn(slowly).taken, path)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(taken, 0, 2)
        assert begun.wait(10)
        second = threads.submit(taken, 2, 2)
        wait([second], timeout=0.1)
        goes_on.set()

    assert (first.result(), second.result()) == (LINES[:2], LINES[2:4])
    assert opened.num_opened == 1


def test_few_files_are_left_open(path: Path):
    opened = Opened()
    read_on = ReadOn(opened)

    for number in range(50):
        read_on.taken(path / str(number), 0, 2)

    assert (opened.num_opened, opened.num_open) == (50, MAX_LEFT)
    assert read_on.taken(path / "49", 2, 1) == LINES[2:3]
    assert opened.num_opened == 50


def lines_of(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as file:
        yield from file


def test_a_forked_process_that_reads_on_does_not_move_its_parent_in_the_file(tmp_path: Path):
    path = tmp_path / "lines.gz"
    lines = [b"%d\n" % (number**9 % 1_000_003) for number in range(100_000)]
    path.write_bytes(gzip.compress(b"".join(lines), compresslevel=1))
    taken = partial(ReadOn(lines_of).taken, path)
    assert taken(0, 10) == lines[:10]

    assert [forked(lambda: taken(10, 50_000) == lines[10:50_010]) for _ in range(2)] == [True, True]
    assert taken(10, None) == lines[10:]


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

    found = [records.taken(1, 2), records.taken(0, 1), records.taken(2, 1)]

    assert found == [LINES[1:3], LINES[:1], LINES[2:3]]
    assert looked == [0, 2, 6]
    assert records.taken(4, None) == LINES[4:]
    assert looked == [0, 2, 6, 7]


def test_a_process_forked_while_a_thread_finds_where_records_begin_finds_it_too(path: Path):
    is_looking, may_end, parent = threading.Event(), threading.Event(), os.getpid()

    def end_of(data: mmap.mmap, start: int) -> int:
        is_looking.set()
        assert os.getpid() != parent or may_end.wait(60)
        return data.find(b"\n", start) + 1

    records = Located(path, end_of, bytes.splitlines)
    thread = threading.Thread(target=records.taken, args=(2, 1))
    thread.start()
    assert is_looking.wait(20)
    try:
        assert forked(lambda: records.taken(2, 1)) == LINES[2:3]
    finally:
        may_end.set()
        thread.join()


def lengths(export: Export, lines: list[bytes]) -> Arrays:
    return {"token_ids": np.array([len(line) for line in lines])}


@pytest.mark.parametrize(
    "taken_of",
    [lambda path: partial(ReadOn(Opened()).taken, path), lambda path: located(path)[0].taken],
)
def test_a_file_with_more_or_less_records_than_it_should_have_is_damaged(
    taken_of: Callable[[Path], Taken], path: Path
):
    def portions(num: int) -> list[Portion]:
        export = Export(stored(path.parent, make_manifest()))
        return portions_of_records(export, path.name, num, 2, taken_of(path), lengths)

    assert [of.read()["token_ids"].tolist() for of in portions(5)] == [[1, 3], [0, 2], [1]]
    with pytest.raises(CorruptOutputError, match="expected 2 tokens in a portion, found 3"):
        portions(4)[1].read()
    with pytest.raises(CorruptOutputError, match="expected 2 tokens in a portion, found 1"):
        portions(6)[2].read()
    with pytest.raises(CorruptOutputError, match="expected 8 records, found none from record 6 on"):
        portions(8)[3].read()

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tokflow.errors import CorruptOutputError
from tokflow.exports.format import Arrays, Portion
from tokflow.exports.records import Located, ReadOn, Records, portions_of_records

LINES = [b"a", b"bcd", b"", b"ef", b"g"]


class Opened:
    """Lines that count how often they are read from the beginning, and how many are taken."""

    def __init__(self) -> None:
        self.num_opened = self.num_taken = 0

    def __call__(self) -> Iterator[bytes]:
        self.num_opened += 1
        for line in LINES:
            self.num_taken += 1
            yield line


def test_records_asked_for_in_order_are_read_once():
    opened = Opened()
    records = ReadOn(opened)

    found = [records.taken(0, 2), records.taken(2, 2), records.taken(4, None)]

    assert found == [LINES[:2], LINES[2:4], LINES[4:]]
    assert (opened.num_opened, opened.num_taken) == (1, 5)


def test_records_before_those_read_last_are_read_from_the_beginning_again():
    opened = Opened()
    records = ReadOn(opened)

    found = [records.taken(3, 1), records.taken(1, 2), records.taken(4, 1)]

    assert found == [LINES[3:4], LINES[1:3], LINES[4:]]
    assert opened.num_opened == 2


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


def lengths(lines: list[bytes]) -> Arrays:
    return {"token_ids": np.array([len(line) for line in lines])}


@pytest.mark.parametrize("records", [lambda path: ReadOn(Opened()), lambda path: located(path)[0]])
def test_a_file_with_more_or_less_records_than_it_should_have_is_damaged(
    records: type[Records], path: Path
):
    def portions(num: int) -> list[Portion]:
        return portions_of_records(path, num, 2, records(path), lengths)

    assert [of.read()["token_ids"].tolist() for of in portions(5)] == [[1, 3], [0, 2], [1]]
    with pytest.raises(CorruptOutputError, match="expected 2 tokens in a portion, found 3"):
        portions(4)[1].read()
    with pytest.raises(CorruptOutputError, match="expected 2 tokens in a portion, found 1"):
        portions(6)[2].read()
    with pytest.raises(CorruptOutputError, match="expected 8 records, found none from record 6 on"):
        portions(8)[3].read()

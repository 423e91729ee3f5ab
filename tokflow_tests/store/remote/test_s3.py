"""Pieces become parts that are long enough, and nothing of them is lost."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokflow.store.remote import s3
from tokflow.store.remote.objects import Piece
from tokflow.store.remote.s3 import parts_of, ranges_of
from tokflow.store.streams import write_range
from tokflow_tests.disks import full_disk


def test_a_short_piece_takes_what_it_lacks_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "SHORT_BYTES", 8)
    assert parts_of([Piece("", 0, 3), Piece("k", 0, 20), Piece("", 23, 24)]) == [
        [Piece("", 0, 3), Piece("k", 0, 5)],
        [Piece("k", 5, 20)],
        [Piece("", 23, 24)],
    ]


def test_ranges_of_one_object_that_follow_each_other_are_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3, "SHORT_BYTES", 8)
    assert parts_of([Piece("k", 0, 4), Piece("", 4, 4), Piece("k", 4, 9)]) == [[Piece("k", 0, 9)]]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # of a busy machine
@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=12))
def test_parts_are_the_pieces_end_to_end_and_all_but_the_last_are_long(
    pieces: list[tuple[int, bool]],
) -> None:
    data = [
        Piece("" if is_sent else str(i), 3 + 1000 * i, 3 + 1000 * i + number)
        for i, (number, is_sent) in enumerate(pieces)
    ]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SHORT_BYTES": 8, "PART_BYTES": 16, "COPIED_BYTES": 40}.items():
            patch.setattr(s3, name, value)
        found = parts_of(data)

    assert _bytes_of(itertools.chain(*found)) == _bytes_of(data)
    assert all(sum(map(len, part)) >= 8 for part in found[:-1])
    assert all(len(part) == 1 or sum(map(len, part)) <= 8 for part in found)
    assert all(len(part[0]) <= (40 if part[0].key else 16) for part in found)


def test_parts_grow_where_there_would_be_too_many() -> None:
    pieces = [Piece(str(number), 0, 8 << 20) for number in range(30_000)]
    assert len(parts_of(pieces)) <= 10_000
    assert len(parts_of([Piece("", 0, 10**13)])) <= 10_000


def _bytes_of(pieces: Iterable[Piece]) -> list[tuple[str, int, int]]:
    """Return runs of bytes: of an object those between two positions."""
    runs: list[tuple[str, int, int]] = []
    for piece in filter(len, pieces):
        start = piece.start
        if runs and (runs[-1][0], runs[-1][2]) == (piece.key, start):
            start = runs.pop()[1]
        runs.append((piece.key, start, piece.stop))
    return runs


def test_there_are_never_more_than_ten_thousand_ranges() -> None:
    assert list(ranges_of(0)) == []
    assert len(list(ranges_of(10**12))) == 10_000
    assert list(ranges_of((16 << 20) + 1)) == [(0, 16 << 20), (16 << 20, (16 << 20) + 1)]


def test_a_disk_that_takes_half_of_a_range_is_full(tmp_path: Path):
    with (
        (tmp_path / "file").open("wb", buffering=0) as file,
        pytest.raises(OSError, match="too large"),
        full_disk(4),
    ):
        write_range(file.fileno(), b"12345678", 0)

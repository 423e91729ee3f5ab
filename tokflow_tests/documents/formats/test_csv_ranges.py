"""Ranges of csv and tsv: cut where records begin, whatever their quotes hold."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tokflow.documents import DocumentsConfig, Range, ranges_of
from tokflow.documents.formats import csv_ranges
from tokflow.documents.formats.csv_records import Dialect
from tokflow_tests.documents.test_ranges import check

PLAIN = DocumentsConfig()
MANY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def _blocks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_ranges, "_SCAN_BYTES", 5)


def record_starts(content: bytes) -> set[int]:
    """Return where records begin, also empty lines, as the reader's own expressions have it."""
    starts, dialect = [len(content) - len(content.removeprefix(b"\xef\xbb\xbf"))], Dialect(b",")
    while match := dialect.record.match(content, starts[-1]):
        starts.append(match.end())
    return {0, *starts, len(content)}


@MANY
@given(
    content=st.lists(
        st.sampled_from(
            [b'"', b'""', b'","', b'"\n"', b",", b"\n", b"\r\n", b"\r", b"a", b"bcdef"]
        ),
        max_size=40,
    ).map(b"".join),
    has_mark=st.booleans(),
    range_bytes=st.integers(1, 30),
)
@example(content=b'a\r,"b\nc",d\n', has_mark=False, range_bytes=3)
@example(content=b'"a"\r"b\n"', has_mark=False, range_bytes=3)
def test_whatever_a_file_holds_it_is_cut_where_records_begin(
    content, has_mark, range_bytes, tmp_path: Path
):
    path = tmp_path / "a.csv"
    content = b"\xef\xbb\xbf" * has_mark + b"id,text,other\n" + content
    path.write_bytes(content)

    ranges = ranges_of(path, PLAIN, range_bytes=range_bytes)

    edges = [0, *(within.stop for within in ranges)] if ranges else [0, len(content)]
    assert [within.start for within in ranges] == edges[:-1] or not ranges
    assert edges[-1] == len(content)
    assert set(edges) <= record_starts(content)
    for within in ranges:
        lines = content.count(b"\n", 0, within.start)
        assert within.lines_before == lines or within.start == within.stop
    if ranges:
        check(path, {"text": ("other", "text")}, ranges)


@MANY
@given(
    rows=st.lists(
        st.lists(st.text('ab"\n\r,\t', max_size=10), min_size=2, max_size=2),
        min_size=8,
        max_size=12,
    ),
    writing=st.sampled_from(
        [
            {},
            {"quoting": csv.QUOTE_ALL},
            {"quoting": csv.QUOTE_ALL, "lineterminator": "\n"},
            {"dialect": "excel-tab"},
        ]
    ),
    mark=st.sampled_from(["", "\ufeff"]),
    range_bytes=st.integers(10, 36),
)
def test_what_a_writer_of_csv_makes_is_cut(
    rows, writing: Any, mark: str, range_bytes, tmp_path: Path
):
    text = io.StringIO(mark)
    text.seek(len(mark))
    csv.writer(text, **writing).writerows([["text", "other"], *rows])
    path = tmp_path / ("a.tsv" if writing.get("dialect") else "a.csv")
    path.write_bytes(text.getvalue().encode())

    ranges = ranges_of(path, PLAIN, range_bytes=range_bytes)

    assert len(ranges) == -(-path.stat().st_size // range_bytes) > 1
    check(path, {}, ranges)


@pytest.mark.parametrize(
    "odd",
    ['5" disk', '"a" b', 'a "b"', ' "b"', '"a""b"c"', 'a\rb,"c"'],
)
def test_a_file_with_a_quote_where_no_writer_puts_it_is_whole(odd: str, tmp_path: Path):
    path = tmp_path / "a.csv"
    good = '"a, ""b""\r\n",c\n' * 20
    path.write_text(f"text,other\n{good}{odd},d\n{good}", newline="")

    assert ranges_of(path, PLAIN, range_bytes=100) == ()
    path.write_text(f"text,other\n{good}{good}", newline="")
    assert ranges_of(path, PLAIN, range_bytes=100) != ()


def test_a_record_longer_than_a_range_leaves_ranges_empty_that_begin_in_it(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text('text\na\n"' + "b\n" * 15 + '"\nc\n')

    assert ranges_of(path, PLAIN, range_bytes=10) == (
        Range(0, 40, lines_before=0),
        Range(40, 40, lines_before=18),
        Range(40, 40, lines_before=18),
        Range(40, 40, lines_before=18),
        Range(40, 42, lines_before=18),
    )

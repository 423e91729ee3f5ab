import csv
import re
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.documents.formats.delimited import Dialect, OddRecord, RecordCutter
from tokflow_tests.reading import in_blocks

COMMAS = Dialect(b",")
SHAPES = [COMMAS.records(1, {0}), COMMAS.records(2, {0, 1})]
PIECES = ["a", '"', '""', ",", "\r", "\n", '"\n', '","', '\n"']
CONTENT = st.lists(st.sampled_from(PIECES)).map("".join)
SIZES = st.lists(st.integers(1, 5))


def as_csv_reads(content: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the first line of each record, and its fields; None where it is malformed."""
    lines = [line + "\n" for line in content.removesuffix("\n").split("\n")] if content else []
    reader = csv.reader(lines, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield line, None
        else:
            if fields:
                yield line, fields


def cutter_of(
    content: str, shape: re.Pattern[bytes], sizes: list[int], max_bytes: int = 1000
) -> RecordCutter:
    """Return the records of `content` in blocks of the sizes, one after another."""
    blocks = in_blocks(content.encode(), sizes)
    cutter = RecordCutter(blocks, COMMAS, max_bytes=max_bytes, byte_offset=0)
    cutter.pattern = shape
    return cutter


def fields_of(record: bytes) -> list[str] | None:
    try:
        return list(COMMAS.fields(record))
    except ValueError:
        return None


@settings(max_examples=80, deadline=None)
@given(content=CONTENT, shape=st.sampled_from(SHAPES), sizes=SIZES)
def test_records_are_those_of_the_csv_module(
    content: str, shape: re.Pattern[bytes], sizes: list[int]
):
    found: list[tuple[int, list[str] | None]] = []
    for batch in cutter_of(content, shape, sizes):
        if isinstance(batch, OddRecord):
            is_open = batch.problem == "open quotes"
            found.append((batch.first_line, None if is_open else fields_of(batch.data)))
        else:
            lines = [batch.place(nth)[0] for nth in range(len(batch.records))]
            texts = [[COMMAS.text(field).decode() for field in row] for row in batch.records]
            found += zip(lines, texts, strict=True)

    assert found == list(as_csv_reads(content))


@settings(max_examples=80, deadline=None)
@given(content=CONTENT, shape=st.sampled_from(SHAPES), sizes=SIZES, max_bytes=st.integers(1, 12))
def test_records_and_what_is_said_of_odd_ones_depend_on_no_block(
    content: str, shape: re.Pattern[bytes], sizes: list[int], max_bytes: int
):
    def said(sizes: list[int]) -> list[tuple[object, ...]]:
        said: list[tuple[object, ...]] = []
        for batch in cutter_of(content, shape, sizes, max_bytes):
            if isinstance(batch, OddRecord):
                where = (batch.problem, batch.first_line)
                said += [(*where, *place) for place in batch.lines()]
            else:
                said += [(record, batch.place(nth)) for nth, record in enumerate(batch.records)]
        return said

    whole = said([])

    assert said(sizes) == whole

"""JSON arrays: their elements are the records that lines are in JSON lines."""

import csv
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.documents import DocumentsConfig, Limit, Reject
from tokflow.documents.formats import arrow, columns_of, parquet
from tokflow.documents.formats.delimited import Dialect, OddRecord, RecordCutter
from tokflow.documents.formats.json_array import cut_records
from tokflow.documents.ranges import ranges_of
from tokflow.errors import RawFileError
from tokflow_tests.reading import in_blocks, read_documents

VALUES = ['"a,]"', r'"\""', '"é"', "[]", "12.5e3", "NaN", '{"a": [1, {"b": "]"},\n2]}']
GAPS = [",", " , \n", ",,\r\n", "\n,"]


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(GAPS))),
    end=st.sampled_from(["]", "\n] \n"]),
    sizes=st.lists(st.integers(1, 5)),
    max_bytes=st.sampled_from([15, 1000]),
)
def test_elements_do_not_depend_on_blocks(
    values: list[tuple[str, str]], end: str, sizes: list[int], max_bytes: int
):
    content, expected = "[ 1,", [("1", 1, 2)]
    for value, gap in values:
        place = content.count("\n") + 1, len(content.encode())
        expected.append((value if len(value) <= max_bytes else None, *place))
        content += value + gap
    found: list[tuple[str | None, int | None, int | None]] = []

    for some in cut_records(
        in_blocks((content + end).encode(), sizes), Path("a"), max_bytes=max_bytes
    ):
        lines = [None] if some.is_too_large else [line.decode() for line in some.lines]
        found += [(line, *some.place(nth)) for nth, line in enumerate(lines)]

    assert found == expected


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".jsonl"])
def test_records_of_an_array_are_those_of_json_lines(suffix: str, tmp_path: Path):
    records: list[Any] = [{"text": 'a \\" [,'}, {"text": 5}, {"text": "x" * 90}, [1], {"n": [{}]}]
    content = b"\xef\xbb\xbf\n" + json.dumps(records, indent=1).encode()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    rejects: list[Reject] = []
    config = DocumentsConfig(on_bad_document="reject", limit=Limit(document_bytes=90))

    [batch] = read_documents(path, config, on_reject=rejects.append)

    assert (batch.texts.to_pylist(), batch.rows.tolist()) == (['a \\" [,'], [0])
    assert [(of.row, of.line) for of in rejects] == [(1, 6), (2, 9), (3, 12), (4, 15)]
    lines = content.split(b"\n")
    assert [of.byte_offset for of in rejects] == [
        len(b"\n".join(lines[: (of.line or 0) - 1])) + 2 for of in rejects
    ]
    assert rejects[3].reason.startswith("expected the key 'text', found the keys 'n'")
    assert columns_of(path, config).texts == ["text"]
    assert ranges_of(path, DocumentsConfig(), range_bytes=10) == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"text": "a"}', "found the end of the file in it; download"),
        ('[{"text": "a"}, {"text": "b', "found the end of the file in it; download"),
        ('[{"text": "a"}]\n[', r"found b'\[' after its end; download"),
        ('[{"text": "a"}\n}', r"line 1: expected .*, found b'}' where its \] would be; download"),
        ('[{"text": nul, "a": 1}, {}]', r"found .*nul.* \(Expecting value\); download"),
        (f'[{{"a": "{"x" * 300}', "found an element of more than 200 bytes, which"),
        (f'[{{"a": "{"x" * 300}"}}]', "found an element of more than 200 bytes, which"),
        ('{\n "text": "a"\n}', "array of records, found an object over several lines; write"),
    ],
)
def test_what_is_no_whole_array_is_an_error(content: str, said: str, tmp_path: Path):
    (tmp_path / "a.json").write_text(content)
    config = DocumentsConfig(on_bad_document="reject", limit=Limit(document_bytes=100))

    with pytest.raises(RawFileError, match=said):
        list(read_documents(tmp_path / "a.json", config))


@pytest.mark.parametrize("first", ["[INFO] start", "[note]", "[a", "[1, 2]"])
def test_a_first_line_with_a_bracket_is_a_bad_line_and_no_array(first: str, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(f'{first}\n{{"text": "x"}}\n')
    rejects: list[Reject] = []
    config = DocumentsConfig(on_bad_document="reject")

    [batch] = read_documents(tmp_path / "a.jsonl", config, on_reject=rejects.append)

    assert batch.texts.to_pylist() == ["x"]
    assert [of.line for of in rejects] == [1]


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


LARGE = "x" * 10_000


def decoded(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Read a file; return of each batch its rows and bytes, as they were decoded."""
    sizes: list[tuple[int, int]] = []

    def heard(batches: Iterator[pa.RecordBatch], *rest: Any) -> Iterator[Any]:
        for batch in batches:
            sizes.append((len(batch), batch.nbytes))
            yield from documents_in(iter([batch]), *rest)

    documents_in = arrow.documents_in
    monkeypatch.setattr(arrow, "documents_in", heard)
    found = list(read_documents(path, DocumentsConfig()))
    texts = [text for batch in found for text in batch.texts.to_pylist()]
    assert texts == pq.read_table(path)["text"].to_pylist()
    return sizes


@pytest.mark.parametrize("texts", [[LARGE] * 600, ["a"] * 300 + [LARGE] * 300, [LARGE, "a"] * 300])
def test_what_a_dictionary_makes_of_a_small_file_is_not_in_memory_at_once(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(parquet, "_DECODED_BYTES", 100_000)
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=400)

    sizes = decoded(tmp_path / "a.parquet", monkeypatch)

    assert sum(rows for rows, _ in sizes) == 600
    assert sum(num_bytes > 200_000 for _, num_bytes in sizes) <= 1  # where large ones begin


def test_a_row_group_of_one_document_that_is_too_large_is_rejected_without_reading_it(
    tmp_path: Path,
):
    path = tmp_path / "a.parquet"
    texts = ["a", "x" * 30_000, "b"]
    kinds = {"row_group_size": 1, "compression": "none", "write_page_checksum": True}
    pq.write_table(pa.table({"text": texts}), path, **kinds)
    path.write_bytes(path.read_bytes().replace(b"x" * 20_000, b"y" * 20_000))  # damaged if read
    config = DocumentsConfig(on_bad_document="reject", limit=Limit(document_bytes=1_000))
    rejects: list[Reject] = []

    [batch] = read_documents(path, config, on_reject=rejects.append)

    assert (batch.texts.to_pylist(), batch.rows.tolist()) == (["a", "b"], [0, 2])
    with pytest.raises(RawFileError, match="CRC"):
        list(read_documents(path, DocumentsConfig()))
    assert [(of.row, of.reason) for of in rejects] == [
        (1, "expected at most 1,000 bytes, found more")
    ]


class ShortLists:
    """A parquet file of 10 rows, of which Arrow makes lists of 3 or less at once."""

    def __init__(self, most: int) -> None:
        self.most = most

    def iter_batches(self, *, batch_size: int, **_: Any) -> Iterator[pa.RecordBatch]:
        for start in range(0, 10, batch_size):
            if batch_size > self.most and start > 0:
                raise pa.ArrowNotImplementedError("Nested data conversions for chunked arrays")
            rows = list(range(start, min(10, start + batch_size)))
            yield pa.record_batch({"row": rows})


def test_rows_that_arrow_cannot_join_are_halved_and_tried_again():
    found: Any = list(parquet._decoded(ShortLists(3), 0, [], 8, 8))

    assert [row for batch, _ in found for row in batch["row"].to_pylist()] == list(range(10))
    assert found[-1][1] == 2


def test_a_row_that_arrow_cannot_read_is_not_called_damaged(tmp_path: Path):
    said = r"expected what pyarrow .* can read, found Nested"
    rows: Any = ShortLists(0)

    with pytest.raises(RawFileError, match=said), arrow.undamaged(tmp_path):
        list(parquet._decoded(rows, 0, [], 8, 8))

"""Ranges of a raw file: read alone, each gives what reading the whole file gives of it."""

import gzip
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokflow.documents import DocumentsConfig, DocumentSource, Limit, Reject, Render
from tokflow.documents.ranges import RANGE_BYTES, Range, is_cut, open_range, ranges_of
from tokflow.errors import BadDocumentError, ConfigError, RawFileError, TokflowError
from tokflow_tests.documents.test_documents import CASES
from tokflow_tests.reading import LINES, PLAIN, read_documents, write_records, write_table

ANYHOW = {"on_bad_document": "reject", "max_rejects": 10**6}
SMALL = Limit(document_bytes=60)
MARK = b"\xef\xbb\xbf"

Document = tuple[int, str, int, list[tuple[int, int]] | None]


class Found(NamedTuple):
    """All that reading gives: documents, rejects, and the error that ended it."""

    documents: list[Document]
    rejects: list[Reject]
    error: TokflowError | None
    num_lines: int = 0
    """Of the range, if it is one."""


CUT_CASES = {
    name for name in CASES if name.startswith(("jsonl", "parquet", "arrow", "txt line"))
} - {"arrow stream"}
"""The others have separators, quotes, or are a stream."""


def find(
    path: Path, config: DocumentsConfig, within: Range | None = None, render: Render | None = None
) -> Found:
    documents: list[Document] = []
    rejects: list[Reject] = []
    source = DocumentSource([path], config, within=within)
    try:
        for batch in source.batches(
            batch_bytes=1000, on_reject=lambda _, reject: rejects.append(reject), render=render
        ):
            spans = [
                None if batch.loss_spans is None else batch.loss_spans.document(index)
                for index in range(len(batch.rows))
            ]
            texts = batch.texts.to_pylist()
            documents += zip(
                batch.rows.tolist(), texts, batch.num_chars.tolist(), spans, strict=True
            )
    except TokflowError as error:
        return Found(documents, rejects, error)
    return Found(documents, rejects, None, source.num_lines)


def moved(reject: Reject, rows: int, lines: int) -> Reject:
    line = None if reject.line is None else reject.line + lines
    return replace(reject, row=reject.row + rows, line=line)


def find_in_ranges(
    path: Path, config: DocumentsConfig, ranges: Sequence[Range], render: Render | None = None
) -> Found:
    """Return what the ranges give, one after another, with rows and lines counted on; the first
    error."""
    documents: list[Document] = []
    rejects: list[Reject] = []
    num_rows = num_lines = 0
    for within in ranges:
        found = find(path, config, within, render)
        documents += [(row + num_rows, *rest) for row, *rest in found.documents]
        rejects += [moved(reject, num_rows, num_lines) for reject in found.rejects]
        if found.error is not None:
            return Found(documents, rejects, found.error)
        assert open_range(path, config, within).before.rows == num_rows
        num_rows += len(found.documents) + len(found.rejects)
        num_lines += found.num_lines
    return Found(documents, rejects, None)


def said(error: TokflowError | None) -> tuple[Any, ...]:
    return type(error), str(error), vars(error) if error is not None else None


def check(
    path: Path, fields: dict[str, Any], ranges: Sequence[Range], render: Render | None = None
) -> None:
    """Require that the ranges give what the whole file gives, in both modes."""
    for mode in ({}, ANYHOW):
        config = DocumentsConfig(**fields, **mode)

        whole = find(path, config, render=render)
        found = find_in_ranges(path, config, ranges, render)

        assert said(found.error) == said(whole.error)
        if whole.error is None:
            assert found.documents == whole.documents
            assert found.rejects == whole.rejects


def cut_at(num_bytes: int, cuts: Sequence[int]) -> list[Range]:
    edges = [0, *sorted(cut % (num_bytes + 1) for cut in cuts), num_bytes]
    return [Range(start, stop) for start, stop in pairwise(edges)]


GOOD = b'{"text": "good", "other": "\xc3\xa9"}'
JSON_LINES = [
    GOOD, b'{"text": "\xf0\x9f\x98\x80 \\u00e9\\n", "other": ""}', b'{"text": "", "other": "b"}',
    b"", b" \t", b"\r", GOOD + b"\r", b'{"text": null, "other": "c"}', b'{"id": 1}',
    b'{"text": "\xff", "other": "\xff"}', b'{"tex', b" " * 61, MARK + GOOD,
    b'{"text": "' + b"x" * 60 + b'"}',
]  # fmt: skip
TEXT_LINES = [b"good", b"gr\xc3\xb6\xc3\x9fe", b"", b"\r", b" ", b"b\xff", b"x" * 70, b"a\r", MARK]
CUTS = st.lists(st.integers(0, 2000), max_size=6)
MANY = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

FIELDS = st.sampled_from(
    [
        {},
        {"text": ("other", "text")},
        {"text": ("other", "text"), "join": " -- "},
        {"prompt": "text", "completion": "other"},
    ]
)


LINES_OF = {".jsonl": JSON_LINES, ".txt": TEXT_LINES}


@pytest.mark.parametrize("suffix", LINES_OF)
@MANY
@given(
    data=st.data(),
    fields=FIELDS,
    is_small=st.booleans(),
    has_mark=st.booleans(),
    has_end=st.booleans(),
    cuts=CUTS,
)
def test_ranges_of_text_give_what_the_whole_gives(
    suffix, data, fields, is_small, has_mark, has_end, cuts, tmp_path: Path
):
    lines = data.draw(st.lists(st.sampled_from(LINES_OF[suffix]), max_size=30))
    path = tmp_path / f"a{suffix}"
    content = MARK * has_mark + b"\n".join(lines) + b"\n" * has_end
    path.write_bytes(content)
    fields = {"document_per": "line"} if suffix == ".txt" else fields

    check(path, {**fields, **({"limit": SMALL} if is_small else {})}, cut_at(len(content), cuts))


@MANY
@given(
    texts=st.lists(st.sampled_from([b"good", b"", b"\xc3\xa9", b"\xff", None, b"x" * 70])),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    fields=FIELDS,
    is_small=st.booleans(),
    suffix=st.sampled_from([".parquet", ".arrow"]),
    cuts=CUTS,
)
def test_ranges_of_columns_give_what_the_whole_gives(
    texts, sizes, fields, is_small, suffix, cuts, tmp_path: Path
):
    path = tmp_path / f"a{suffix}"
    others = [None if text is None else text + b"o" for text in reversed(texts)]
    types = {"text": pa.binary(), "other": pa.binary()}
    table = pa.table({"text": texts, "other": others}, pa.schema(list(types.items())))
    num_gathered = write_columns(path, table, sizes)
    fields = {**fields, "limit": SMALL} if is_small else fields

    check(path, fields, cut_at(num_gathered, cuts))


def write_columns(path: Path, table: pa.Table, sizes: Sequence[int]) -> int:
    """Write row groups or record batches of these sizes, over and over; return how many."""
    starts = [0, *accumulate(sizes * (1 + len(table)))]
    slices = [
        table.slice(start, stop - start) for start, stop in pairwise(starts) if start < len(table)
    ]
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, table.schema) as writer:
            for some in slices:
                writer.write_table(some)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            for some in slices:
                writer.write_batch(some.combine_chunks().to_batches()[0])
    return len(slices)


@pytest.mark.parametrize("name", CASES)
def test_awkward_texts_of_every_kind_of_file_are_the_same_in_ranges(name: str, tmp_path: Path):
    file_name, write, options, config, texts = CASES[name]
    path = tmp_path / file_name
    write(texts * 5, path, **options)

    ranges = ranges_of(path, config, range_bytes=10)
    found = find_in_ranges(path, config, ranges)

    assert (ranges != ()) == (name in CUT_CASES)
    if ranges:
        assert found == find(path, config)


# What is odd


def test_what_is_before_the_range_is_not_read_for_rejects(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" * 10 + b'{"text": "a"}\n' * 10 + b"{}\n")
    monkeypatch.setattr("tokflow.documents.formats.jsonl.before", lambda *_: pytest.fail("counted"))

    found = find(path, DocumentsConfig(on_bad_document="reject"), Range(30, 200))

    assert len(found.documents) == 10
    assert [(reject.row, reject.line, reject.byte_offset) for reject in found.rejects] == [
        (10, 11, 170)
    ]


def test_max_rejects_counts_those_of_the_range(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes((b'{"text": "a"}\n' + b"{\n" * 2) * 2)
    config = DocumentsConfig(on_bad_document="reject", max_rejects=2)
    ranges = [Range(0, 18), Range(18, 36)]

    found = find_in_ranges(path, config, ranges)

    assert [reject.row for reject in found.rejects] == [1, 2, 4, 5]
    assert isinstance(find(path, config).error, BadDocumentError)


# A field that no record of the file has


@pytest.fixture(autouse=True)
def _one_record_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokflow.documents.formats.jsonl.MANY_RECORDS", 1)


LACKING = DocumentsConfig(on_bad_document="reject", max_rejects=3)


@pytest.mark.parametrize(
    ("lines", "errors"),
    [
        (["{}", "{}", "{}"], [ConfigError, ConfigError, ConfigError]),
        (["{}", "{", "{}"], [ConfigError, None, ConfigError]),
        (["{", "", "{}"], [None, None, ConfigError]),
        (['{"text": "a"}', "{}", "{}"], [None, None, None]),
        (["{}", "{}", '{"text": 5}'], [None, None, None]),
        (["{}\n{}", "{}", "{}"], [None, None, None]),
    ],
)
def test_a_field_that_no_record_has_is_an_error_of_each_range_that_lacks_it(
    lines: list[str], errors: list[type | None], tmp_path: Path
):
    path = tmp_path / "a.jsonl"
    content = [f"{line}\n" for line in lines]
    path.write_text("".join(content))
    edges = [0, *accumulate(map(len, content))]

    whole = find(path, LACKING)
    found = [find(path, LACKING, one) for one in map(Range, edges, edges[1:])]

    assert [None if one.error is None else type(one.error) for one in found] == errors
    if isinstance(whole.error, ConfigError):
        assert {str(one.error) for one in found if one.error} == {str(whole.error)}
    else:
        assert errors == [None, None, None]


def write_large(path: Path) -> None:
    """Write about 100 kB in 1000 records of `text`."""
    records = [{"text": f"{row} " + "é" * 45} for row in range(1000)]
    if path.suffix == ".parquet":
        write_table(path, pa.Table.from_pylist(records), rows=100, compression="none")
    else:
        write_records(path, records, rows=100)


CUT = {"a.jsonl": PLAIN, "a.txt": LINES, "a.parquet": PLAIN, "a.arrow": PLAIN}


@pytest.mark.parametrize("name", CUT)
def test_a_large_file_is_cut_into_ranges_of_about_one_size(name: str, tmp_path: Path):
    path, config = tmp_path / name, CUT[name]
    write_large(path)

    ranges = ranges_of(path, config, range_bytes=30_000)
    found = [find(path, config, within) for within in ranges]

    num_bytes = [sum(len(text.encode()) for _, text, *_ in of.documents) for of in found]
    assert [one.stop for one in ranges[:-1]] == [one.start for one in ranges[1:]]
    assert 4 <= len(ranges) <= 11
    assert max(num_bytes) <= 36_000
    assert min(num_bytes) >= 0.4 * max(num_bytes)
    assert find_in_ranges(path, config, ranges) == find(path, config)
    assert ranges == ranges_of(path, config, range_bytes=30_000)


@pytest.mark.parametrize("name", CUT)
def test_a_file_that_is_no_larger_than_a_range_is_whole(name: str, tmp_path: Path):
    path = tmp_path / name
    write_large(path)
    num_bytes = path.stat().st_size

    assert ranges_of(path, CUT[name]) == ()
    assert ranges_of(path, CUT[name], range_bytes=4 * num_bytes) == ()
    assert ranges_of(path, CUT[name], range_bytes=num_bytes // 2) != ()
    largest = RANGE_BYTES // 4 if path.suffix == ".parquet" else RANGE_BYTES  # it is compressed
    assert not is_cut(path, largest, CUT[name])
    assert is_cut(path, largest + 1, CUT[name])


WHOLE = [
    ("a.jsonl.gz", PLAIN),
    ("a.csv", PLAIN),
    ("a.tsv", PLAIN),
    ("a.csv.zst", PLAIN),
    ("a.jsonl.zst", PLAIN),
    ("a.csv.bz2", PLAIN),
    ("a.txt.xz", LINES),
    ("a.txt", PLAIN),
    ("a.txt", DocumentsConfig(document_per="separator", separator="\n")),
    ("a.jsonl", DocumentsConfig(limit=Limit(documents=10**9))),
    ("a.parquet", DocumentsConfig(limit=Limit(characters=10**12))),
    ("a.bin", PLAIN),
]


@pytest.mark.parametrize(("name", "config"), WHOLE)
def test_what_cannot_be_cut_is_whole(name: str, config: DocumentsConfig, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(random.Random(0).randbytes(1000)))

    assert ranges_of(path, config, range_bytes=10) == ()
    assert not is_cut(path, 10**15, config)
    with pytest.raises((ValueError, ConfigError)):
        read_documents(path, config, within=Range(0, 5))


def test_a_stream_and_one_row_group_are_whole(tmp_path: Path):
    write_large(tmp_path / "a.ipc")
    table = pa.table({"text": ["x" * 1000] * 100})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")

    assert ranges_of(tmp_path / "a.ipc", PLAIN, range_bytes=1000) == ()
    assert ranges_of(tmp_path / "a.parquet", PLAIN, range_bytes=1000) == ()
    with pytest.raises(ValueError, match="found a stream"):
        find(tmp_path / "a.ipc", PLAIN, Range(0, 5))


def test_only_the_columns_that_are_read_count(tmp_path: Path):
    path = tmp_path / "a.parquet"
    texts = pa.array([f"{row} " * 30 for row in range(1000)])
    other = pa.array([f"{row} " * 300 for row in range(1000)])
    table = pa.table({"text": texts, "other": other})
    pq.write_table(table, path, row_group_size=10, use_dictionary=False)

    few = ranges_of(path, PLAIN, range_bytes=40_000)
    many = ranges_of(path, DocumentsConfig(text="other"), range_bytes=40_000)

    assert len(few) < 5
    assert len(many) > 25


@pytest.mark.parametrize("name", CUT)
def test_a_file_that_is_damaged_or_missing_is_an_error_and_not_whole(name: str, tmp_path: Path):
    path = tmp_path / name

    with pytest.raises(OSError, match="No such file"):
        ranges_of(path, CUT[name], range_bytes=10)
    with pytest.raises(RawFileError):
        next(read_documents(path, CUT[name], within=Range(0, 1)))
    if path.suffix in (".parquet", ".arrow"):
        path.write_bytes(b"ARROW1 and no more")
        with pytest.raises(RawFileError, match="expected an undamaged file"):
            ranges_of(path, CUT[name], range_bytes=10)

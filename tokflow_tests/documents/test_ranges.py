"""Ranges of a raw file: read alone, each gives what reading the whole file gives of it."""

import gzip
import json
import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokflow.documents import (
    RANGE_BYTES,
    READERS,
    DocumentsConfig,
    Limit,
    Range,
    Reject,
    Render,
    is_cut,
    ranges_of,
    read_documents,
    rows_before,
)
from tokflow.errors import BadDocumentError, ConfigError, RawFileError, TokflowError
from tokflow.tokenizers.chat.renderer import open_renderer

PLAIN = DocumentsConfig()
LINES = DocumentsConfig(document_per="line")
ANYHOW = {"on_bad_document": "reject", "max_rejects": 10**6}
SMALL = Limit(document_bytes=60)
MARK = b"\xef\xbb\xbf"

Document = tuple[int, str, int, list[tuple[int, int]] | None]


class Found(NamedTuple):
    """All that reading gives: documents, rejects, and the error that ended it."""

    documents: list[Document]
    rejects: list[Reject]
    error: TokflowError | None


def find(
    path: Path, config: DocumentsConfig, within: Range | None = None, render: Render | None = None
) -> Found:
    documents: list[Document] = []
    rejects: list[Reject] = []
    options: dict[str, Any] = {"on_reject": rejects.append, "within": within, "render": render}
    try:
        for batch in read_documents(path, config, batch_bytes=1000, **options):
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
    return Found(documents, rejects, None)


def find_in_ranges(
    path: Path, config: DocumentsConfig, ranges: Sequence[Range], render: Render | None = None
) -> Found:
    """Return what the ranges give, one after another, with the rows counted on; the first error."""
    documents: list[Document] = []
    rejects: list[Reject] = []
    num_rows = 0
    for within in ranges:
        found = find(path, config, within, render)
        documents += [(row + num_rows, *rest) for row, *rest in found.documents]
        rejects += found.rejects
        if found.error is not None:
            return Found(documents, rejects, found.error)
        assert rows_before(path, config, within) == num_rows
        num_rows += len(found.documents) + len(found.rejects)
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
    GOOD,
    b'{"text": "\xf0\x9f\x98\x80 \\u00e9\\n", "other": ""}',
    b'{"text": "", "other": "b"}',
    b"",
    b" \t",
    b"\r",
    GOOD + b"\r",
    b'{"text": null, "other": "c"}',
    b'{"id": 1}',
    b'{"text": "\xff", "other": "\xff"}',
    b'{"tex',
    b" " * 61,
    MARK + GOOD,
    b'{"text": "' + b"x" * 60 + b'"}',
]
TEXT_LINES = [b"good", b"gr\xc3\xb6\xc3\x9fe", b"", b"\r", b" ", b"b\xff", b"x" * 70, b"a\r", MARK]
CSV_LINES = [
    b"0,good,\xc3\xa9",
    b"1,b,c\r",
    b"",
    b"\r",
    b"\r\r",
    b",,",
    b"2,a\xff,d",
    b"3",
    b"4,a,b,c",
    b"5,a\rb,c",
    b"\r" * 61,
    b"6," + b"x" * 60 + b",b",
    b"7,,",
    MARK + b"8,b,c",
]
CUTS = st.lists(st.integers(0, 2000), max_size=6)
MANY = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

FIELDS = st.sampled_from(
    [
        {},
        {"text": ("other", "text")},
        {"text": ("other", "text"), "join": " -- "},
        {"prompt": "text", "completion": "other"},
    ]
)


def content_of(lines: list[bytes], *, has_mark: bool, has_end: bool) -> bytes:
    return (MARK if has_mark else b"") + b"\n".join(lines) + (b"\n" if has_end else b"")


@MANY
@given(
    lines=st.lists(st.sampled_from(JSON_LINES), max_size=30),
    fields=FIELDS,
    is_small=st.booleans(),
    has_mark=st.booleans(),
    has_end=st.booleans(),
    cuts=CUTS,
)
def test_ranges_of_jsonl_give_what_the_whole_gives(
    lines, fields, is_small, has_mark, has_end, cuts, tmp_path: Path
):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content_of(lines, has_mark=has_mark, has_end=has_end))
    fields = {**fields, "limit": SMALL} if is_small else fields

    check(path, fields, cut_at(path.stat().st_size, cuts))


@MANY
@given(
    lines=st.lists(st.sampled_from(TEXT_LINES), max_size=30),
    is_small=st.booleans(),
    has_mark=st.booleans(),
    has_end=st.booleans(),
    cuts=CUTS,
)
def test_ranges_of_lines_of_text_give_what_the_whole_gives(
    lines, is_small, has_mark, has_end, cuts, tmp_path: Path
):
    path = tmp_path / "a.txt"
    path.write_bytes(content_of(lines, has_mark=has_mark, has_end=has_end))
    fields = {"document_per": "line", **({"limit": SMALL} if is_small else {})}

    check(path, fields, cut_at(path.stat().st_size, cuts))


@MANY
@given(
    blank=st.lists(st.sampled_from([b"", b"\r"]), max_size=3),
    lines=st.lists(st.sampled_from(CSV_LINES), max_size=30),
    fields=FIELDS,
    is_small=st.booleans(),
    has_mark=st.booleans(),
    has_end=st.booleans(),
    delimiter=st.sampled_from([b",", b"\t"]),
    cuts=CUTS,
)
def test_ranges_of_csv_give_what_the_whole_gives(
    blank, lines, fields, is_small, has_mark, has_end, delimiter, cuts, tmp_path: Path
):
    path = tmp_path / ("a.csv" if delimiter == b"," else "a.tsv")
    content = content_of([*blank, b"id,text,other", *lines], has_mark=has_mark, has_end=has_end)
    path.write_bytes(content.replace(b",", delimiter))
    fields = {**fields, "limit": SMALL} if is_small else fields

    check(path, fields, cut_at(path.stat().st_size, cuts))


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


# Which ranges there are


def write_large(path: Path, *, columns: int = 1) -> None:
    """Write about 100 kB in 1000 records of `text`."""
    texts = [f"{row} " + "é" * 45 for row in range(1000)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=100, compression="none")
    elif path.suffix in (".arrow", ".ipc"):
        table = pa.table({"text": texts})
        new = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        path.write_text("text\n" + "\n".join(texts))


CUT = {
    "a.jsonl": PLAIN,
    "a.csv": PLAIN,
    "a.tsv": PLAIN,
    "a.txt": LINES,
    "a.parquet": PLAIN,
    "a.arrow": PLAIN,
}


def test_every_format_has_a_file_that_is_cut():
    assert {Path(name).suffix[1:] for name in CUT} == set(READERS)


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
    assert ranges_of(path, CUT[name], range_bytes=num_bytes) == ()
    assert ranges_of(path, CUT[name], range_bytes=num_bytes // 2) != ()
    assert not is_cut(path, RANGE_BYTES, CUT[name])
    assert is_cut(path, RANGE_BYTES + 1, CUT[name])


WHOLE = [
    ("a.jsonl.gz", PLAIN),
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


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_table_with_a_quote_anywhere_is_whole(name: str, tmp_path: Path):
    path = tmp_path / name
    write_large(path)
    path.write_bytes(path.read_bytes() + b'"')

    assert ranges_of(path, PLAIN, range_bytes=1000) == ()
    assert is_cut(path, 10**9, PLAIN)


def test_a_stream_and_one_row_group_are_whole(tmp_path: Path):
    write_large(tmp_path / "a.ipc")
    table = pa.table({"text": ["x" * 1000] * 100})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")

    assert ranges_of(tmp_path / "a.ipc", PLAIN, range_bytes=1000) == ()
    assert ranges_of(tmp_path / "a.parquet", PLAIN, range_bytes=1000) == ()
    with pytest.raises(ValueError, match="found a stream"):
        list(read_documents(tmp_path / "a.ipc", PLAIN, within=Range(0, 5)))


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
def test_a_file_that_is_damaged_or_missing_is_whole_and_reading_it_says_why(
    name: str, tmp_path: Path
):
    path = tmp_path / name

    assert ranges_of(path, CUT[name], range_bytes=10) == ()
    with pytest.raises(RawFileError):
        read_documents(path, CUT[name], within=Range(0, 1))
    if path.suffix in (".parquet", ".arrow"):
        path.write_bytes(b"ARROW1 and no more")
        assert ranges_of(path, CUT[name], range_bytes=10) == ()


# What is odd


def test_a_line_longer_than_a_range_leaves_ranges_empty(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "' + b"x" * 1000 + b'"}\n{"text": "c"}\n')

    found = [find(path, PLAIN, one) for one in ranges_of(path, PLAIN, range_bytes=100)]

    assert [[text[:1] for _, text, *_ in one.documents] for one in found] == [
        ["a", "x"],
        *([[]] * 9),
        ["c"],
    ]


def test_good_files_are_not_read_before_the_range(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" * 10 + b'{"text": "a"}\n' * 10)
    monkeypatch.setattr("tokflow.documents.jsonl.before", lambda *_: pytest.fail("counted"))

    assert len(find(path, PLAIN, Range(30, 200)).documents) == 10


def test_chats_are_cut_like_others(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    chat = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "yes"}]
    lines = [json.dumps({"messages": chat}), "", '{"messages": []}', '{"messages": "x"}'] * 5
    path.write_text("\n".join(lines))
    fields = {"messages": "messages", "chat_template": template}
    render = open_renderer(DocumentsConfig(**fields), None)

    check(path, fields, cut_at(path.stat().st_size, range(0, 1000, 70)), render)


def test_max_rejects_counts_those_of_the_range(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes((b'{"text": "a"}\n' + b"{\n" * 2) * 2)
    config = DocumentsConfig(on_bad_document="reject", max_rejects=2)
    ranges = [Range(0, 18), Range(18, 36)]

    found = find_in_ranges(path, config, ranges)

    assert [reject.row for reject in found.rejects] == [1, 2, 4, 5]
    assert isinstance(find(path, config).error, BadDocumentError)


# A field that no record of the file has


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


@MANY
@given(
    lines=st.lists(st.sampled_from(["{}", "{", "", '{"other": "a"}', '{"text": 1}']), max_size=8),
    text=st.sampled_from(["text", ("text", "other")]),
    max_rejects=st.integers(0, 9),
    cuts=CUTS,
)
def test_a_field_is_found_missing_where_reading_the_whole_finds_it_so(
    lines, text, max_rejects, cuts, tmp_path: Path
):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    config = DocumentsConfig(text=text, on_bad_document="reject", max_rejects=max_rejects)

    whole = find(path, config).error
    errors = [find(path, config, one).error for one in cut_at(path.stat().st_size, cuts)]

    missing = {str(error) for error in errors if isinstance(error, ConfigError)}
    assert missing == ({str(whole)} if isinstance(whole, ConfigError) else set())

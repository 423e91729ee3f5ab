import csv
import gzip
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokflow.documents import DocumentsConfig, DocumentSource, Limit, Reject
from tokflow.documents.decoding import zstd
from tokflow.documents.formats.txt import cut, separator_of
from tokflow.errors import ConfigError
from tokflow_tests import reading
from tokflow_tests.reading import read, rows_in, texts_in

AWKWARD = [
    "plain", "", "two\r\nlines\n", "\r", " kept white space \t",
    'a "quote", a ""pair"" and a , comma', "nul\x00inside", "back\\slash \\u0041 \\n",
    "größe 漢字 e\u0301", "😀 astral \U0010ffff", "\ufeffnot a byte order mark",
    "\u2028\u2029\x85\x0b\x0c\x1c", "\ufffe\uffff\x7f", "",
]  # fmt: skip
ONE_LINE = [text for text in AWKWARD if "\n" not in text]


def as_table(made: Callable[[list[str]], pa.Table]) -> Callable[[list[str], Path], None]:
    """Return what writes the table of some texts, in row groups or record batches of 4 rows."""

    def write(texts: list[str], path: Path) -> None:
        try:
            reading.write_table(path, made(texts), rows=4)
        except pa.ArrowNotImplementedError:  # pyarrow 19 has views of strings and writes none
            pytest.skip(f"pyarrow {pa.__version__} does not write them")

    return write


def column_of(type_: pa.DataType) -> Callable[[list[str], Path], None]:
    def made(texts: list[str]) -> pa.Table:
        column = pa.array(texts, pa.string()).cast(type_)
        return pa.table({"id": range(len(texts)), "text": column})

    return as_table(made)


def nested(texts: list[str]) -> pa.Table:
    return pa.table({"meta": [{"more": {"text": text}, "other": 1} for text in texts]})


def dotted(texts: list[str]) -> pa.Table:
    meta = [{"more": {"text": "not this"}}] * len(texts)
    return pa.table({"meta": meta, "meta.more.text": texts})


def write_jsonl(texts: list[str], path: Path, *, ascii_only: bool = False, end: str = "\n"):
    lines = [json.dumps({"id": 1, "text": text}, ensure_ascii=ascii_only) for text in texts]
    path.write_bytes("".join(line + end for line in lines).encode())


def write_nested_jsonl(texts: list[str], path: Path):
    lines = [json.dumps({"meta": {"x": None, "more": {"text": text}}}) for text in texts]
    path.write_bytes("\n".join(lines).encode())


def write_csv(texts: list[str], path: Path, *, dialect: str = "excel", bom: str = ""):
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(bom)
        writer = csv.writer(file, dialect, quoting=csv.QUOTE_ALL)
        writer.writerow(["x,\ny", "text"])
        writer.writerows([1, text] for text in texts)


def write_separated(texts: list[str], path: Path, *, separator: str):
    path.write_bytes("".join(text + separator for text in texts).encode())


NESTED = DocumentsConfig(text="meta.more.text")
SEPARATED = DocumentsConfig(document_per="separator", separator="<|end|>")
BESIDE_COLUMNS = SEPARATED.model_copy(update={"text": ("a", "b")})
"""Of files of two columns."""

STRING, LARGE, VIEW = pa.string(), pa.large_string(), pa.string_view()
CODES = pa.dictionary(pa.int32(), pa.string())
QUOTED = DocumentsConfig(quoting="double")

Case = tuple[str, Callable[..., None], dict[str, object], DocumentsConfig, list[str]]
CASES: dict[str, Case] = {
    "parquet string": ("a.parquet", column_of(STRING), {}, reading.PLAIN, AWKWARD),
    "parquet large_string": ("a.parquet", column_of(LARGE), {}, reading.PLAIN, AWKWARD),
    "parquet string_view": ("a.parquet", column_of(VIEW), {}, reading.PLAIN, AWKWARD),
    "parquet binary": ("a.parquet", column_of(pa.binary()), {}, reading.PLAIN, AWKWARD),
    "parquet large_binary": ("a.parquet", column_of(pa.large_binary()), {}, reading.PLAIN, AWKWARD),
    "parquet dictionary": ("a.parquet", column_of(CODES), {}, reading.PLAIN, AWKWARD),
    "parquet nested": ("a.parquet", as_table(nested), {}, NESTED, AWKWARD),
    "parquet dots in the name": ("a.parquet", as_table(dotted), {}, NESTED, AWKWARD),
    "arrow file": ("a.arrow", column_of(STRING), {}, reading.PLAIN, AWKWARD),
    "arrow stream": ("a.ipc", column_of(LARGE), {}, reading.PLAIN, AWKWARD),
    "arrow string_view": ("a.feather", column_of(VIEW), {}, reading.PLAIN, AWKWARD),
    "arrow dictionary": ("a.arrow", column_of(CODES), {}, reading.PLAIN, AWKWARD),
    "jsonl": ("a.jsonl", write_jsonl, {}, reading.PLAIN, AWKWARD),
    "jsonl escaped": ("a.json", write_jsonl, {"ascii_only": True}, reading.PLAIN, AWKWARD),
    "jsonl CRLF": ("a.JSONL", write_jsonl, {"end": "\r\n"}, reading.PLAIN, AWKWARD),
    "jsonl blank lines": ("a.jsonl", write_jsonl, {"end": "\n \t\n"}, reading.PLAIN, AWKWARD),
    "jsonl nested": ("a.jsonl", write_nested_jsonl, {}, NESTED, AWKWARD),
    "csv": ("a.csv", write_csv, {}, reading.PLAIN, AWKWARD),
    "csv LF": ("a.csv", write_csv, {"dialect": "unix"}, reading.PLAIN, AWKWARD),
    "csv BOM": ("a.csv", write_csv, {"bom": "\ufeff"}, reading.PLAIN, AWKWARD),
    "tsv": ("a.tsv", write_csv, {"dialect": "excel-tab"}, QUOTED, AWKWARD),
    "txt line": ("a.txt", write_separated, {"separator": "\n"}, reading.LINES, ONE_LINE),
    "txt separator": ("a.txt", write_separated, {"separator": "<|end|>"}, SEPARATED, AWKWARD),
}


@pytest.mark.parametrize("batch_bytes", [1, 2_000_000])
@pytest.mark.parametrize("name", CASES)
def test_what_is_read_is_what_was_written(name: str, batch_bytes: int, tmp_path: Path):
    file_name, write, options, config, texts = CASES[name]
    path = tmp_path / file_name
    write(texts, path, **options)

    batches = reading.read(path, config, batch_bytes=batch_bytes)

    assert reading.texts_in(batches) == texts
    assert reading.rows_in(batches) == list(range(len(texts)))
    assert [n for batch in batches for n in batch.num_chars.tolist()] == list(map(len, texts))
    for batch in batches:
        batch.texts.validate(full=True)
        assert batch.texts.type == pa.large_string()
        assert batch.texts.null_count == 0
        assert batch.rows.dtype == batch.num_chars.dtype == "int64"
        assert len(batch.rows) == len(batch.texts) == len(batch.num_chars) > 0


@pytest.mark.parametrize(
    ("content", "config", "texts"),
    [
        (b"", reading.PLAIN, [""]),
        (b"", reading.LINES, []),
        (b"\n", reading.LINES, [""]),
        (b"a\n\nb", reading.LINES, ["a", "", "b"]),
        (b"a\r\nb\r", reading.LINES, ["a\r", "b\r"]),
        (b"", SEPARATED, []),
        (b"<|end|>", SEPARATED, [""]),
        (b"a<|end|><|end|>b", SEPARATED, ["a", "", "b"]),
        (b"ab\ncd<|end|>ef", BESIDE_COLUMNS, ["ab\ncd", "ef"]),
    ],
)
def test_the_last_empty_piece_of_a_txt_file_is_no_document(
    content: bytes, config: DocumentsConfig, texts: list[str], tmp_path: Path
):
    path = tmp_path / "a.txt"
    path.write_bytes(content)

    assert reading.texts_in(reading.read(path, config)) == texts


def test_several_columns_give_one_document_each_in_the_order_named(tmp_path: Path):
    records = [{"a": "a0", "b": "b0"}, {"a": "a1", "b": "b1"}]
    config = DocumentsConfig(text=("b", "a"))

    for suffix in ("jsonl", "parquet", "csv"):
        path = reading.write_records(tmp_path / f"x.{suffix}", records)
        batches = reading.read(path, config)

        assert reading.texts_in(batches) == ["b0", "a0", "b1", "a1"], path
        assert reading.rows_in(batches) == [0, 1, 2, 3], path


JOINED = DocumentsConfig(text=("body", "title"), join=" -- ", on_bad_document="reject")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("batch_bytes", [1, 2_000_000])
def test_columns_that_are_joined_give_one_document_in_the_order_named(
    suffix: str, batch_bytes: int, tmp_path: Path
):
    records = [{"title": "One", "body": "größe"}, {"title": "", "body": ""}]
    path = reading.write_records(tmp_path / f"a{suffix}", records)

    batches = reading.read(path, JOINED, batch_bytes=batch_bytes)

    assert reading.texts_in(batches) == ["größe -- One", " -- "]
    assert reading.rows_in(batches) == [0, 1]
    assert [num for batch in batches for num in batch.num_chars.tolist()] == [12, 4]
    assert all(batch.loss_spans is None for batch in batches)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_a_record_with_a_null_column_is_one_bad_document(suffix: str, tmp_path: Path):
    good = {"title": "x", "body": "y"}
    records = [good, {**good, "title": None}, good, {"title": None, "body": None}, good]
    rejects: list[Reject] = []

    batches = reading.read(
        reading.write_records(tmp_path / f"a{suffix}", records), JOINED, on_reject=rejects.append
    )

    assert (reading.rows_in(batches), reading.texts_in(batches)) == ([0, 2, 4], ["y -- x"] * 3)
    assert [reject.row for reject in rejects] == [1, 3]
    assert all("found null" in reject.reason for reject in rejects)


def test_a_null_struct_is_a_bad_document_and_the_other_column_of_its_record_is_not(tmp_path: Path):
    table = pa.table({"m": [{"x": "0"}, None, {"x": "2"}], "y": ["a", "b", "c"]})
    pq.write_table(table, tmp_path / "x.parquet")
    config = DocumentsConfig(text=("m.x", "y"), on_bad_document="reject")

    batches = reading.read(tmp_path / "x.parquet", config)

    assert reading.texts_in(batches) == ["0", "a", "b", "2", "c"]
    assert reading.rows_in(batches) == [0, 1, 3, 4, 5]


# Batches


def test_a_batch_is_of_about_batch_bytes_however_little_is_read_at_once(tmp_path: Path):
    texts = [f"{n} " + "é" * 49_000 for n in range(90)]
    write_jsonl(texts, tmp_path / "a.jsonl")
    reading.write_table(tmp_path / "a.parquet", pa.table({"text": texts}), rows=90)

    for name in ("a.jsonl", "a.parquet"):
        batches = reading.read(tmp_path / name, reading.PLAIN, batch_bytes=2_000_000)

        assert reading.texts_in(batches) == texts
        sizes = [batch.texts.nbytes for batch in batches]
        assert min(sizes[:-1]) >= 1_500_000, name
        assert max(sizes) <= 3_000_000, name


def test_a_row_group_is_never_in_memory_whole(tmp_path: Path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"{row} " + "x" * 50_000 for row in range(1500)]})
    pq.write_table(table, path, write_batch_size=16, use_dictionary=False)  # pages of 1 MB
    assert pq.ParquetFile(path).num_row_groups == 1
    before = pa.total_allocated_bytes()

    peak = max(
        pa.total_allocated_bytes() - before for _ in reading.read_documents(path, reading.PLAIN)
    )

    assert peak < 10_000_000 < table.nbytes


@settings(max_examples=100, deadline=None)
@given(
    blocks=st.lists(st.text("ab\r\n", min_size=1, max_size=6), max_size=12),
    separator=st.sampled_from(["a", "aa", "ab", "aba", "abab", "\n", "\r\n\n", "a\nb", None]),
    max_bytes=st.integers(1, 80),
)
@example(blocks=["ab\nc"], separator=None, max_bytes=2)
def test_lines_do_not_depend_on_blocks(blocks: list[str], separator: str | None, max_bytes: int):
    keeps_ends, end, ends = True, b"\n", "\n"
    if separator is not None:
        keeps_ends, end = False, separator_of(separator)
        ends = "\r?\n".join(separator.replace("\r\n", "\n").split("\n"))
    *whole, last = re.split(f"({ends})", "".join(blocks))
    expected = [*whole[::2], *([last] if last else [])]
    kept = [*map("".join, zip(whole[::2], whole[1::2], strict=True))]

    blocks_of = (block.encode() for block in blocks)
    found = list(cut(blocks_of, end, max_bytes=max_bytes, keeps_ends=keeps_ends))

    texts = [[line.decode().removesuffix("\n" * keeps_ends) for line in of.lines] for of in found]
    pairs = zip(found, texts, strict=True)
    lines = {of.first + nth: line for of, some in pairs for nth, line in enumerate(some)}
    large = [of.first for of in found if of.is_too_large]
    assert large == [nth for nth, piece in enumerate(expected) if len(piece) > max_bytes]
    assert sorted([*lines, *large]) == list(range(len(expected)))
    assert all(line == expected[nth] for nth, line in lines.items())
    assert [of.byte_offset for of in found] == [len("".join(kept[: of.first])) for of in found]


@pytest.mark.parametrize("suffix", ["jsonl", "txt"])
def test_memory_holds_a_large_document_twice(suffix: str, tmp_path: Path):
    size, path = 8_000_000, tmp_path / f"a.{suffix}"
    with path.open("w") as file:
        for letter in "abc":
            text = letter * size
            file.write(json.dumps({"text": text}) if suffix == "jsonl" else text)
            file.write("\n")
    config = DocumentsConfig(document_per="line") if suffix == "txt" else DocumentsConfig()
    tracemalloc.start()
    try:
        num_documents = 0
        for batch in DocumentSource([path], config).batches():
            num_documents += len(batch.rows)
            del batch
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert num_documents == 3
    assert peak < 2.9 * size


# Limits


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (Limit(documents=1), ["aa"]),
        (Limit(documents=2), ["aa", "bbb"]),
        (Limit(characters=1), ["aa"]),
        (Limit(characters=2), ["aa"]),
        (Limit(characters=3), ["aa", "bbb"]),
        (Limit(characters=5), ["aa", "bbb"]),
        (Limit(documents=1, characters=5), ["aa"]),
        (Limit(documents=2, characters=1), ["aa"]),
        (Limit(documents=2, tokens=1), ["aa", "bbb"]),  # which are not made here
    ],
)
@pytest.mark.parametrize("batch_bytes", [1, 1000])
def test_reading_stops_after_the_document_that_reaches_the_limit(
    limit: Limit, expected: list[str], batch_bytes: int, tmp_path: Path
):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "aa"}\n{"text": "bbb"}\n{malformed\n')

    batches = read(path, DocumentsConfig(limit=limit), batch_bytes=batch_bytes)

    assert texts_in(batches) == expected


def test_documents_that_are_empty_are_read_and_count_only_if_they_are_to(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{text}"}}\n' for text in ["", "aa", "", "bb", "", "cc"]))

    def texts(**limit) -> list[str]:
        return texts_in(read(path, DocumentsConfig(limit=Limit(**limit))))

    assert texts(documents=3) == ["", "aa", ""]
    assert texts(documents=2, count_empty=False) == ["", "aa", "", "bb"]
    refused = r"count_empty: expected true, or a limit of documents, .* found false;"
    with pytest.raises(ConfigError, match=refused):
        Limit(characters=9, count_empty=False)


@pytest.mark.parametrize("limit", [Limit(documents=8_000), Limit(characters=8_000)])
def test_a_limit_counts_over_batches_and_not_the_rejects(limit: Limit, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    lines = ['{"text": "é"}\n', "{}\n"] * 10_000  # several blocks of 64 KiB
    path.write_text("".join(lines))
    rejects: list[Reject] = []
    config = DocumentsConfig(limit=limit, on_bad_document="reject", max_rejects=10**6)

    batches = read(path, config, batch_bytes=1000, on_reject=rejects.append)

    assert rows_in(batches) == list(range(0, 16_000, 2))
    assert [reject.row for reject in rejects] == list(range(1, 15_999, 2))


def test_a_limit_costs_no_reading_of_what_comes_after(tmp_path: Path):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstd.compress(b"a line\n" * 100_000)[:-10] + b"damaged!!!")
    config = DocumentsConfig(document_per="line", limit=Limit(documents=5))

    assert texts_in(read(path, config, batch_bytes=1000)) == ["a line"] * 5


# Rejects


# Documents that are too large


@pytest.mark.parametrize(
    ("name", "before", "bomb", "per"),
    [
        ("a.jsonl.gz", b'{"text": "', b"x", "file"),
        ("a.txt.gz", b"", b"x", "file"),
        ("a.txt.gz", b"", b"x", "line"),
        ("a.csv.gz", b"text\n", b"x", "file"),
        ("a.csv.gz", b"text\n", b",", "file"),
        ("a.csv.gz", b"text\n", b'"",', "file"),
        ("a.tsv.gz", b'text\n"', b'""', "file"),
    ],
)
def test_a_document_that_is_too_large_is_passed_over_in_little_memory(
    name: str, before: bytes, bomb: bytes, per: str, tmp_path: Path
):
    path = tmp_path / name
    member = gzip.compress(bomb * (1_000_000 // len(bomb)), 1)
    path.write_bytes(gzip.compress(before, 1) + member * 10)
    limit = Limit(document_bytes=500_000)
    config = DocumentsConfig(document_per=per, limit=limit, on_bad_document="reject")
    rejects: list[Reject] = []
    tracemalloc.start()

    assert read(path, config, on_reject=rejects.append) == []
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [reject.reason.split(", found")[1][:5] for reject in rejects] == [" more"]
    assert peak_bytes < 8_000_000


def test_a_document_as_large_as_may_be_is_read_whatever_the_blocks(tmp_path: Path):
    text = "x" * 100_000  # more than a block
    files = {
        "a.jsonl": (len('{"text": ""}') + 100_000, json.dumps({"text": text})),
        "a.csv": (102_000, f'text\n"{text}{"1" * 1_998}"'),
        "a.txt": (100_000, text),
    }
    for name, (num_bytes, content) in files.items():
        (tmp_path / name).write_text(content)
        for most, expected in ((num_bytes, 1), (num_bytes - 1, 0)):
            config = DocumentsConfig(limit=Limit(document_bytes=most), on_bad_document="reject")

            assert len(texts_in(read(tmp_path / name, config, batch_bytes=1))) == expected, name

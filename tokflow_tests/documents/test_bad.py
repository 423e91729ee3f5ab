"""Bad documents and bad files: what each reader says of each fault, in both modes.

A row of BAD is one fault in one reader: its bytes, what is said, and with `reject` what is
accepted and what is set aside. FRAMES says what stands around the fault.
"""
# ruff: noqa: E501 - a row of a table is one line

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, Limit, Reject
from tokflow.documents.formats import READERS
from tokflow.errors import (
    BadContentError,
    BadDocumentError,
    ConfigError,
    RawFileError,
    TokflowError,
)
from tokflow_tests.reading import read_documents, texts_of, write_table


class Frame(NamedTuple):
    """A file with a good document before the fault and one after it, `good` and `last`."""

    file: str
    before: bytes
    after: bytes
    place: tuple[int, int | None, int | None]
    """The row, line and byte offset of the fault."""
    config: dict[str, Any] | None = None


SEPARATED = {"document_per": "separator", "separator": "<->"}
FRAMES = {
    "jsonl": Frame("a.jsonl", b'{"text": "good"}\n\n', b'\n{"text": "last"}\n', (1, 3, 18)),
    "csv": Frame("a.csv", b"id,text\n1,good\n\n", b"\n9,last\n", (1, 4, 16)),
    "tsv": Frame("a.tsv", b"id\ttext\n1\tgood\n\n", b"\n9\tlast\n", (1, 4, 16)),
    "txt file": Frame("a.txt", b"", b"", (0, None, 0)),
    "txt line": Frame("a.txt", b"good\n", b"\nlast\n", (1, 2, 5), {"document_per": "line"}),
    "txt separator": Frame("a.txt", b"good<->", b"<->last", (1, None, 7), SEPARATED),
    "parquet": Frame("a.parquet", b"good", b"last", (1, None, None)),
    "arrow": Frame("a.arrow", b"good", b"last", (1, None, None)),
}

FIX_LINE, FIX_ROW = "fix the line", "fix the row"
RAISE = "raise documents.limit.document_bytes"
NO_KEY = "set documents.text to the field that holds the text"
JSON = "expected a JSON object, found "
STRING = "expected a string in 'text', found "
UTF8 = "expected valid UTF-8, found invalid "
SMALL = Limit(document_bytes=30)
TOO_LARGE = "expected at most 30 bytes, found more"
OPEN = "expected quotes that are closed, found the end of the file in quotes opened in line "
SHAPE = "expected a record of well-formed fields, found "
TWO = "expected 2 fields, as in the header, found "

Place = tuple[int, int | None, int | None]


class Bad(NamedTuple):
    """One fault: `said` is the message between the place and what else can be done."""

    reader: str
    name: str
    fault: bytes | None
    said: str
    remedy: str
    accepted: Sequence[str] = ("good", "last")
    rejects: Sequence[Place] = ()
    """Those after the first, which is at the place of the frame."""
    config: dict[str, Any] | None = None


# fmt: off
BAD = [
    Bad("jsonl", "malformed", b'{"text": "a",}', JSON + 'b\'{"text": "a",}\' (JSON is malformed: trailing comma in object (byte 13))', FIX_LINE),
    Bad("jsonl", "truncated", b'{"text": "abc', JSON + 'b\'{"text": "abc\' (Input data was truncated)', FIX_LINE),
    Bad("jsonl", "two on a line", b'{"text": "a"}{"text": "b"}', JSON + 'b\'{"text": "a"}{"text": "b"}\' (JSON is malformed: trailing characters (byte 14))', FIX_LINE),
    Bad("jsonl", "missing", b'{"id": 1, "texts": "a"}', "expected the key 'text', found the keys 'id', 'texts' (nearest: 'texts')", NO_KEY),
    Bad("jsonl", "null", b'{"text": null}', STRING + "null", FIX_LINE),
    Bad("jsonl", "number", b'{"text": 12}', STRING + "the number 12", FIX_LINE),
    Bad("jsonl", "object", b'{"text": {"a": [1]}}', STRING + "the object {'a': [1]}", FIX_LINE),
    Bad("jsonl", "array", b'["text"]', "expected a JSON object, found the array ['text']", FIX_LINE),
    Bad("jsonl", "duplicate keys", b'{"text": "x", "text": 5}', STRING + "the number 5", FIX_LINE),
    Bad("jsonl", "invalid UTF-8", b'{"text": "a\xffb"}', UTF8 + 'start byte at byte 11, in b\'"text": "a\\xffb"}\'', FIX_LINE),
    Bad("jsonl", "surrogate in UTF-8", b'{"text": "\xed\xa0\x80"}', UTF8 + 'continuation byte at byte 10, in b\'{"text": "\\xed\\xa0\\x80"}\'', FIX_LINE),
    Bad("jsonl", "lone surrogate", b'{"text": "a\\ud800"}', "expected text, found the lone surrogate '\\ud800' in b'{\"text\": \"a\\\\ud800\"}'", FIX_LINE),
    Bad("jsonl", "lone surrogate, no text", b'{"a": "\\ud800"}', "expected the key 'text', found the keys 'a'", NO_KEY),
    Bad("jsonl", "NUL", b'{"text": "\0"}', JSON + 'b\'{"text": "\\x00"}\' (JSON is malformed: invalid character (byte 10))', FIX_LINE),
    Bad("jsonl", "NaN", b'{"text": "a", "n": NaN}', JSON + 'b\'{"text": "a", "n": NaN}\' (JSON is malformed: invalid character (byte 19))', FIX_LINE),
    Bad("jsonl", "deep", b'{"x": ' + b"[" * 100_000, "expected JSON, found too many nested values in b'{\"x\": " + "[" * 49 + "...", FIX_LINE),
    Bad("jsonl", "long number", b'{"text": ' + b"1" * 1000 + b"}", STRING + "the number " + "1" * 57 + "...", FIX_LINE),
    Bad("jsonl", "too large", b'{"text": "' + b"x" * 19 + b'"}', TOO_LARGE, RAISE, config={"limit": SMALL}),

    Bad("csv", "too few fields", b"2", TWO + "1: ['2']", FIX_LINE),
    Bad("csv", "too many fields", b"2,b,c", TWO + "3: ['2', 'b', 'c']", FIX_LINE),
    Bad("csv", "text after quotes", b'2,"b" c', SHAPE + "' c' after a closing quote", FIX_LINE),
    Bad("csv", "carriage return", b"2,a\rb", SHAPE + "a carriage return outside quotes", FIX_LINE),
    Bad("csv", "invalid UTF-8", b"2,a\xffb", UTF8 + "start byte at byte 1, in b'a\\xffb'", FIX_LINE),
    Bad("csv", "open quotes", b'2,"b', OPEN + "4 (in the record of the lines 4 to 5)", "close the quotes of line 4", ["good"], [(2, 5, 21)]),
    Bad("csv", "open quotes after others", b'"2\n",",\nb', OPEN + "5 (in the record of the lines 4 to 7)", "close the quotes of line 5", ["good"], [(2, 5, 19), (3, 6, 24), (4, 7, 26)]),
    Bad("csv", "wrong quote", b'2,"b\n3,c\n4,"d"\n5,e', SHAPE + "'d\"' after a closing quote (in the record of the lines 4 to 6)", FIX_LINE, ["good", "e", "last"], [(2, 5, 21), (3, 6, 25)]),
    Bad("csv", "wrong quote with its like", b'2,"b\n3,",c\n5,e', TWO + "3: ['2', 'b\\n3,', 'c'] (in the record of the lines 4 to 5)", FIX_LINE, ["good", "e", "last"], [(2, 5, 21)]),
    Bad("csv", "too large", b'2,"' + b"x" * 13 + b"\n" + b"y" * 13 + b'"', "expected at most 30 bytes, and quotes that are closed, found more (in the record that begins in line 4)", RAISE, rejects=[(2, 5, 33)], config={"limit": SMALL}),
    Bad("csv", "too large a line", b"2," + b"x" * 29, "expected at most 30 bytes, and quotes that are closed, found more (in the record that begins in line 4)", RAISE, config={"limit": SMALL}),
    Bad("tsv", "too many fields", b"2\tb\tc", TWO + "3: ['2', 'b', 'c']", FIX_LINE),
    Bad("tsv", "open quotes", b'2\t"b', OPEN + "4 (in the record of the lines 4 to 5)", "close the quotes of line 4", ["good"], [(2, 5, 21)], {"quoting": "double"}),

    Bad("txt file", "invalid UTF-8", b"ab\ncd\xff", UTF8 + "start byte at byte 5, in b'ab\\ncd\\xff'", FIX_ROW, []),
    Bad("txt file", "too large", b"x" * 31, TOO_LARGE, RAISE, [], config={"limit": SMALL}),
    Bad("txt line", "invalid UTF-8", b"cd\xff", UTF8 + "start byte at byte 2, in b'cd\\xff'", FIX_LINE),
    Bad("txt line", "too large", b"x" * 31, TOO_LARGE, RAISE, config={"limit": SMALL}),
    Bad("txt separator", "invalid UTF-8", b"c\nd\xff", UTF8 + "start byte at byte 3, in b'c\\nd\\xff'", FIX_ROW),
    Bad("txt separator", "too large", b"x" * 31, TOO_LARGE, RAISE, config={"limit": SMALL}),
    *(
        row
        for reader in ("parquet", "arrow")
        for row in (
            Bad(reader, "null", None, "expected text, found null", FIX_ROW),
            Bad(reader, "invalid UTF-8", b"ab\xff", UTF8 + "start byte at byte 2, in b'ab\\xff'", FIX_ROW),
            Bad(reader, "surrogate in UTF-8", b"\xed\xa0", UTF8 + "continuation byte at byte 0, in b'\\xed\\xa0'", FIX_ROW),
            Bad(reader, "too large", b"x" * 31, TOO_LARGE, RAISE, config={"limit": SMALL}),
        )
    ),
]
# fmt: on


def write(path: Path, frame: Frame, fault: bytes | None) -> None:
    if path.suffix in (".parquet", ".arrow"):
        column = pa.array([frame.before, fault, frame.after], pa.binary()).view(pa.string())
        write_table(path, pa.table({"text": column}), rows=1000)
    else:
        content = frame.before + (fault or b"") + frame.after
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def error_of(path: Path, config: DocumentsConfig | None = None) -> TokflowError:
    with pytest.raises(TokflowError) as caught:
        texts_of(path, config or DocumentsConfig())
    return caught.value


def test_every_reader_has_bad_documents():
    assert {bad.reader.split()[0] for bad in BAD} == set(READERS)
    assert {bad.reader for bad in BAD} == set(FRAMES)


CASES = [
    pytest.param(bad, suffix, id=f"{bad.reader}{suffix}: {bad.name}")
    for bad in BAD
    for suffix in (["", ".gz"] if bad.reader not in ("parquet", "arrow") else [""])
]


@pytest.mark.parametrize(("bad", "suffix"), CASES)
def test_a_bad_document_is_an_error_or_is_set_aside(bad: Bad, suffix: str, tmp_path: Path):
    frame = FRAMES[bad.reader]
    path = tmp_path / f"{frame.file}{suffix}"
    write(path, frame, bad.fault)
    fields = {**(frame.config or {}), **(bad.config or {})}
    rejects: list[Reject] = []

    error = error_of(path, DocumentsConfig(**fields))
    rejecting = DocumentsConfig(**fields, on_bad_document="reject")
    accepted = texts_of(path, rejecting, on_reject=rejects.append)

    row, line, byte = frame.place
    where = f"{path}, row {row}" + (f", line {line}" if line else "")
    where += "" if byte is None else f", byte {byte}"
    unit = "row" if line is None else "line"
    aside = f"or set documents.on_bad_document: reject to set such {unit}s aside"
    assert str(error) == f"{where}: {bad.said}; {bad.remedy}, {aside}"
    assert isinstance(error, BadDocumentError)
    assert (error.path, error.row, error.line, error.byte_offset) == (path, row, line, byte)
    assert accepted == list(bad.accepted)
    places = [(reject.row, reject.line, reject.byte_offset) for reject in rejects]
    assert places == [frame.place, *bad.rejects]
    assert {reject.reason for reject in rejects} == {bad.said}


def test_each_line_in_quotes_that_are_not_closed_counts_as_a_reject(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text('id,text\n0,good\n1,"open\n' + "2,a\n" * 500)
    rejects: list[Reject] = []

    accepted = texts_of(path, DocumentsConfig(on_bad_document="reject"), on_reject=rejects.append)
    too_many = error_of(path, DocumentsConfig(on_bad_document="reject", max_rejects=20))

    assert accepted == ["good"]
    assert [(reject.row, reject.line) for reject in rejects] == [(n, n + 2) for n in range(1, 502)]
    assert too_many.where == f"{path}, row 21, line 23, byte 99"
    assert "raise documents.max_rejects, for 20 bad documents are" in too_many.remedy


def test_a_field_that_no_record_has_is_an_error_and_no_rejects(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1, "content": "a"}\n{\n' + '{"id": 2}\n' * 9)
    config = DocumentsConfig(text=("content", "contents"), on_bad_document="reject")

    error = error_of(path, config)
    path.write_text('{"content": "a"}\n' * 9)
    few = texts_of(path, config)
    path.write_text('{"content": "a"}\n{"contents": null}\n')

    assert "found none;" in str(error)
    assert isinstance(error, ConfigError)
    assert few == ["a"] * 9
    assert texts_of(path, config) == ["a"]


def test_a_position_counts_from_the_start_of_the_file(tmp_path: Path):
    good = b'{"text": "good"}\n'
    (tmp_path / "a.jsonl").write_bytes(good * 10_000 + b"{\n")  # over several blocks
    (tmp_path / "a.csv").write_bytes(b"text\n" + b'"good\n"\n\n' * 10_000 + b'a"\n"a"b\n')

    errors = [error_of(tmp_path / name) for name in ("a.jsonl", "a.csv")]

    places = [(error.row, error.line, error.byte_offset) for error in errors]
    assert places == [(10_000, 10_001, 170_000), (10_001, 30_003, 90_008)]


# What is odd and taken as it is


MARK = b"\xef\xbb\xbf"
ESCAPED = b'{"a": "\\ud800", "text": "x"}'

Odd = tuple[str, str, bytes, list[str]]
ODD: list[Odd] = [
    ("a.jsonl", "an empty file", b"", []),
    ("a.jsonl", "blank lines alone", b"\n \n\r\n", []),
    ("a.jsonl", "a byte order mark alone", MARK, []),
    ("a.jsonl", "a byte order mark", MARK + b'{"text": "a"}\n', ["a"]),
    ("a.jsonl", "CRLF", b'{"text": "a\\r"}\r\n\r\n{"text": "b"}\r', ["a\r", "b"]),
    ("a.jsonl", "NUL", b'{"text": "\\u0000"}', ["\0"]),
    ("a.jsonl", "empty documents", b'{"text": ""}\n' * 2, ["", ""]),
    ("a.jsonl", "a key escaped", b'{"t\\u0065xt": "c"}', ["c"]),
    ("a.jsonl", "duplicate keys", b'{"text": "a", "text": "b"}', ["b"]),
    ("a.jsonl", "duplicate keys of types", b'{"text": 5, "text": "b"}', ["b"]),
    ("a.jsonl", "a lone surrogate elsewhere", ESCAPED, ["x"]),
    ("a.jsonl", "invalid UTF-8 elsewhere", b'{"a": "\xff", "text": "x"}', ["x"]),
    ("a.jsonl", "both elsewhere", b'{"a": "\xff\\udc00", "text": "\\ud83d\\ude00"}', ["\U0001f600"]),
    ("a.csv", "a header alone", b"text\n", []),
    ("a.csv", "a byte order mark", MARK + b'"text"\na', ["a"]),
    ("a.csv", "CRLF", b'text\r\n\r\n"a\r\nb"\r\n', ["a\r\nb"]),
    ("a.csv", "NUL", b"text\n\0\n", ["\0"]),
    ("a.csv", "empty documents", b'id,text\n1,\n2,""', ["", ""]),
    ("a.csv", "a quote within", b'text\n5" or 6"\n"5"" or 6"""\n', ['5" or 6"'] * 2),
    ("a.csv", "invalid UTF-8 elsewhere", b"id,text\n\xff,a\n", ["a"]),
    ("a.tsv", "quotes", b'id\ttext\n1\t"a\n2\tb"\n3\t"a"\n', ['"a', 'b"', '"a"']),
    ("a.txt", "an empty file", b"", [""]),
    ("a.txt", "a byte order mark, CRLF, NUL", MARK + b"a\r\n\0", ["a\r\n\0"]),
]  # fmt: skip


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("odd", ODD, ids=[f"{odd[0]}: {odd[1]}" for odd in ODD])
def test_what_is_odd_is_taken_as_it_is(odd: Odd, suffix: str, tmp_path: Path):
    name, _, content, texts = odd
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    rejecting, rejects = DocumentsConfig(on_bad_document="reject"), list[Reject]()

    assert texts_of(path) == texts_of(path, rejecting, on_reject=rejects.append) == texts
    assert rejects == []


# Files that are no documents: an error in both modes


TABLE = pa.table({"text": [f"some text {row}" for row in range(1000)]})
OFFSETS = b"".join(n.to_bytes(4, "little") for n in (0, 4, 8, 12))


def as_parquet(table: pa.Table = TABLE, **options: Any) -> bytes:
    with pa.BufferOutputStream() as sink:
        pq.write_table(table, sink, **options)
        return sink.getvalue().to_pybytes()


def as_arrow(table: pa.Table = TABLE, new: Callable[..., Any] = pa.ipc.new_file) -> bytes:
    with pa.BufferOutputStream() as sink:
        with new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
        return sink.getvalue().to_pybytes()


def as_stream() -> bytes:
    return as_arrow(new=pa.ipc.new_stream)


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def columns(suffix: str, *names: str) -> bytes:
    arrays = [pa.array([name]) for name in names]
    table = pa.Table.from_arrays(arrays, list(names))
    return as_parquet(table) if suffix == "parquet" else as_arrow(table)


def lead_outside(content: bytes) -> bytes:
    assert content.count(OFFSETS) == 1
    return content.replace(OFFSETS, OFFSETS[:4] + b"\xff\xff\xff\x7f" + OFFSETS[8:])


AGAIN = "; download or make the file again, if it is "
HEADER = "line 1: expected a header with the names of the columns, found "
NESTED = pa.table({"id": [1], "content": ["a"], "meta": [{"lang": "c", "n": 1}], "tags": [["a"]]})
NAME = "; set documents.text to the column that holds the text"
ONE, RENAME = (
    ": expected one column 'text', found 2 of them; ",
    "rename all but one of them in the file",
)

File = tuple[str, str, Callable[[], bytes], str, type[TokflowError], str, str]
FILES: list[File] = [
    *(
        (f"a{suffix}", f"cut at {at}", lambda make=make, at=at: make()[:at], "text", BadContentError, ": expected ", f"{AGAIN}{suffix} at all")
        for suffix, make in ((".parquet", as_parquet), (".arrow", as_arrow), (".ipc", as_stream))
        for at in (0, 3, 100, -1)
    ),
    ("a.arrow", "no mark of the end", lambda: as_stream()[:-8], "text", BadContentError, ": expected the mark that ends a stream, found b'", f"'{AGAIN}.arrow at all"),
    ("a.arrow", "offsets outside", lambda: lead_outside(as_arrow(pa.table({"text": ["aaaa", "bbbb", "cccc"]}))), "text", BadContentError, ": expected an undamaged file, found ", f"{AGAIN}.arrow at all"),
    ("a.parquet", "a damaged page", lambda: flipped(as_parquet(write_page_checksum=True, compression="none"), 5000), "text", BadContentError, ": expected an undamaged file, found could not verify page integrity, CRC", f"{AGAIN}.parquet at all"),
    ("a.csv", "empty", lambda: b"", "text", BadContentError, f", {HEADER}an empty file; put", "remove the file"),
    ("a.tsv.gz", "empty", lambda: gzip.compress(b""), "text", BadContentError, f", {HEADER}an empty file; put", "remove the file"),
    ("a.csv", "blank", lambda: b"\n\n", "text", BadContentError, f", {HEADER}an empty file; put", "remove the file"),
    ("a.csv", "an open header", lambda: b'id\n,"text', "text", ConfigError, ": expected a column 'text', found the columns 'id'", NAME),
    ("a.csv", "open quotes in the header", lambda: b'id,"text\n1,a', "text", BadContentError, f", {HEADER}the end of the file in quotes opened in line 1; put", "remove the file"),
    ("a.csv", "a malformed header", lambda: b'"id"s,text\n1,a', "text", BadContentError, f", {HEADER}'s,text' after a closing quote; put", "remove the file"),
    ("a.csv", "no column", lambda: b"id,content\n1,a\n", "contents", ConfigError, ": expected a column 'contents', found the columns 'id', 'content' (nearest: 'content')", NAME),
    ("a.parquet", "no column", lambda: as_parquet(NESTED), "contents", ConfigError, ": expected a column 'contents', found the columns 'id', 'content', 'meta.lang', 'meta.n', 'tags' (nearest: 'content')", NAME),
    ("a.parquet", "numbers", lambda: as_parquet(NESTED), "id", ConfigError, ": expected a column 'id' of strings or UTF-8 bytes, found int64", NAME),
    ("a.arrow", "structs", lambda: as_arrow(NESTED), "meta", ConfigError, ": expected a column 'meta' of strings or UTF-8 bytes, found struct<lang: string, n: int64>", NAME),
    ("a.parquet", "lists", lambda: as_parquet(NESTED), "tags", ConfigError, ": expected a column 'tags' of strings or UTF-8 bytes, found list<element: string>", NAME),
    ("a.csv", "two columns", lambda: b"text,text\na,b\n", "text", ConfigError, ONE, RENAME),
    ("a.parquet", "two columns", lambda: columns("parquet", "text", "text"), "text", ConfigError, ONE, RENAME),
    ("a.arrow", "two columns", lambda: columns("arrow", "text", "text"), "text", ConfigError, ONE, RENAME),
]  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=[f"{file[0]}: {file[1]}" for file in FILES])
def test_a_file_that_is_wrong_is_an_error_in_both_modes(file: File, tmp_path: Path):
    name, _, content, text, kind, begin, end = file
    path = tmp_path / name
    path.write_bytes(content())

    for mode in ("error", "reject"):
        error = error_of(path, DocumentsConfig(text=text, on_bad_document=mode))

        assert type(error) is kind
        assert str(error).startswith(f"{path}{begin}")
        assert str(error).endswith(end)
        assert str(error).count(": expected ") == 1


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("no.txt", "No such file or directory"),
        ("folder.txt", "Is a directory"),
        pytest.param(
            "secret.txt",
            "Permission denied",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files"),
        ),
    ],
)
def test_a_file_that_cannot_be_opened_is_an_error(name: str, found: str, tmp_path: Path):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "secret.txt").touch(mode=0)

    with pytest.raises(RawFileError, match=f"expected a file that can be read, found {found}"):
        next(read_documents(tmp_path / name, DocumentsConfig()))


CUT_WHILE_READ = """
import os, sys
from pathlib import Path
from tokflow.documents import DocumentsConfig
from tokflow_tests.reading import read_documents
from tokflow.errors import BadContentError, RawFileError

for path in map(Path, sys.argv[1:]):
    batches = read_documents(path, DocumentsConfig(), batch_bytes=1)
    next(batches)
    os.truncate(path, path.stat().st_size // 2)
    try:
        list(batches)
    except RawFileError as error:
        print(error.where)
"""


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path):
    paths = [tmp_path / name for name in ("a.arrow", "a.ipc", "a.parquet")]
    texts = pa.table({"text": [f"{row} " * 1_000 for row in range(1000)]})
    paths[0].write_bytes(as_arrow(texts))
    paths[1].write_bytes(as_arrow(texts, pa.ipc.new_stream))
    pq.write_table(texts, paths[2], row_group_size=100)

    run = subprocess.run(
        [sys.executable, "-c", CUT_WHILE_READ, *paths], capture_output=True, text=True, check=False
    )

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == list(map(str, paths))

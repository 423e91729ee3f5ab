from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, read_documents
from tokflow.errors import BadDocumentError, ConfigError, RawFileError, TokflowError

FIRST = b'{"text": "good"}\n'  # 17 bytes
ASIDE = "or set documents.on_bad_document: reject to set such lines aside"
ROWS_ASIDE = "or set documents.on_bad_document: reject to set such rows aside"


def error_of(path: Path, config: DocumentsConfig | None = None) -> TokflowError:
    with pytest.raises(TokflowError) as caught:
        list(read_documents(path, config or DocumentsConfig()))
    return caught.value


JSON_LINES = {
    "malformed": (
        b'{"text": "a",}',
        'expected a JSON object, found b\'{"text": "a",}\' (JSON is malformed: trailing comma in '
        "object (byte 13)); fix the line",
    ),
    "truncated": (
        b'{"text": "abc',
        'expected a JSON object, found b\'{"text": "abc\' (Input data was truncated); fix the line',
    ),
    "two on a line": (
        b'{"text": "a"}{"text": "b"}',
        'expected a JSON object, found b\'{"text": "a"}{"text": "b"}\' (JSON is malformed: '
        "trailing characters (byte 14)); fix the line",
    ),
    "missing": (
        b'{"id": 1, "texts": "a"}',
        "expected the key 'text', found the keys 'id', 'texts' (nearest: 'texts'); set "
        "documents.text to the field that holds the text",
    ),
    "null": (
        b'{"text": null}',
        "expected a string in 'text', found null; fix the line",
    ),
    "number": (
        b'{"text": 12}',
        "expected a string in 'text', found the number 12; fix the line",
    ),
    "object": (
        b'{"text": {"a": [1]}}',
        "expected a string in 'text', found the object {'a': [1]}; fix the line",
    ),
    "array": (
        b'["text"]',
        "expected a JSON object, found the array ['text']; fix the line",
    ),
    "invalid UTF-8": (
        b'{"text": "a\xffb"}',
        'expected valid UTF-8, found invalid start byte at byte 11, in b\'"text": "a\\xffb"}\'; '
        "fix the line",
    ),
    "UTF-8 of a surrogate": (
        b'{"text": "\xed\xa0\x80"}',
        "expected valid UTF-8, found invalid continuation byte at byte 10, in "
        'b\'{"text": "\\xed\\xa0\\x80"}\'; fix the line',
    ),
    "lone surrogate": (
        b'{"text": "a\\ud800"}',
        "expected text, found the lone surrogate '\\ud800' in b'{\"text\": \"a\\\\ud800\"}'; "
        "fix the line",
    ),
    "raw NUL": (
        b'{"text": "\0"}',
        'expected a JSON object, found b\'{"text": "\\x00"}\' (JSON is malformed: invalid '
        "character (byte 10)); fix the line",
    ),
    "NaN": (
        b'{"text": "a", "score": NaN}',
        'expected a JSON object, found b\'{"text": "a", "score": NaN}\' (JSON is malformed: '
        "invalid character (byte 23)); fix the line",
    ),
    "deep": (
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "text": "a"}',
        'expected JSON, found too many nested values in b\'{"x": ' + "[" * 49 + "...; fix the line",
    ),
    "long": (
        b'{"text": ' + b"1" * 1000 + b"}",
        "expected a string in 'text', found the number " + "1" * 57 + "...; fix the line",
    ),
}


@pytest.mark.parametrize("name", JSON_LINES)
@pytest.mark.parametrize("end", [b"\n", b"", b"\n{"], ids=["line", "last line", "line before bad"])
def test_a_bad_json_line_is_named_with_what_is_wrong(name: str, end: bytes, tmp_path: Path):
    line, message = JSON_LINES[name]
    path = tmp_path / "a.jsonl"
    path.write_bytes(FIRST + b"\n" + line + end)

    error = error_of(path)

    assert isinstance(error, BadDocumentError)
    assert (error.path, error.row, error.line, error.byte_offset) == (path, 1, 3, 18)
    assert str(error) == f"{path}, row 1, line 3, byte 18: {message}, {ASIDE}"


def test_a_missing_nested_key_is_named_with_the_keys_beside_it(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"meta": {"body": "a"}, "meta.text": "b"}')

    message = str(error_of(path, DocumentsConfig(text="meta.text")))

    assert "expected the key 'text' in 'meta', found the keys 'body'; set documents.text" in message


def test_a_position_counts_from_the_start_of_the_file(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(FIRST * 10_000 + b"{\n")  # over several blocks

    error = error_of(path)

    assert isinstance(error, BadDocumentError)
    assert (error.row, error.line, error.byte_offset) == (10_000, 10_001, 170_000)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"2", "expected 2 fields, as in the header, found 1: ['2']"),
        (b"2,b,c", "expected 2 fields, as in the header, found 3: ['2', 'b', 'c']"),
        (b'2,"b" c', "expected a record of well-formed fields, found ',' expected after '\"'"),
        (b'2,"b', "expected a record of well-formed fields, found unexpected end of data"),
        (
            b"2,\xc3",
            "expected valid UTF-8, found unexpected end of data at byte 0, in b'\\xc3'",
        ),
        (
            b"2,a\rb",
            "expected a record of well-formed fields, found a carriage return outside quotes",
        ),
    ],
)
def test_a_bad_csv_record_is_named_with_its_first_line(record: bytes, message: str, tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n1,"a\nb"\n\n' + record + b"\n")

    error = error_of(path)

    assert isinstance(error, BadDocumentError)
    assert str(error) == f"{path}, row 1, line 5, byte 17: {message}; fix the line, {ASIDE}"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_byte_order_mark_counts_in_the_byte_offset(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + (b'text\n"a' if name == "a.csv" else b"     \n{"))

    error = error_of(path)

    assert isinstance(error, BadDocumentError)
    assert (error.line, error.byte_offset) == (2, 8 if name == "a.csv" else 9)


@pytest.mark.parametrize(
    ("config", "content", "where"),
    [
        (DocumentsConfig(), b"ab\ncd\xff", "row 0, byte 0"),
        (DocumentsConfig(document_per="line"), b"ab\ncd\xff\nx", "row 1, line 2, byte 3"),
        (
            DocumentsConfig(document_per="separator", separator="--"),
            b"ab--cd\xff--x",
            "row 1, byte 4",
        ),
    ],
)
def test_invalid_utf8_in_a_txt_file_is_a_bad_document(
    config: DocumentsConfig, content: bytes, where: str, tmp_path: Path
):
    path = tmp_path / "a.txt"
    path.write_bytes(content)

    message = str(error_of(path, config))

    assert message.startswith(f"{path}, {where}: expected valid UTF-8, found invalid start byte")


def table_with(value: bytes | None, type_: pa.DataType) -> pa.Table:
    column = pa.array([b"good", value, b""], pa.binary())
    return pa.table({"text": column.view(type_)})


@pytest.mark.parametrize("type_", [pa.string(), pa.binary()])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "expected text, found null"),
        (b"ab\xff", "expected valid UTF-8, found invalid start byte at byte 2, in b'ab\\xff'"),
        (
            b"\xed\xa0",
            "expected valid UTF-8, found invalid continuation byte at byte 0, in b'\\xed\\xa0'",
        ),
    ],
)
def test_a_bad_value_in_a_column_is_named_with_its_row(
    type_: pa.DataType, name: str, value: bytes | None, message: str, tmp_path: Path
):
    path = tmp_path / name
    table = table_with(value, type_)
    if name == "a.parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    error = error_of(path)
    rejecting = DocumentsConfig(on_bad_document="reject")
    [batch] = read_documents(path, rejecting)

    assert str(error) == f"{path}, row 1: {message}; fix the row, {ROWS_ASIDE}"
    assert batch.texts.to_pylist() == ["good", ""]
    assert batch.rows.tolist() == [0, 2]


# Columns


def test_a_column_that_is_not_there_is_an_error_with_those_that_are(tmp_path: Path):
    table = pa.table({"id": [1], "content": ["a"], "meta": [{"lang": "c", "n": 1}]})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("id,content\n1,a\n")

    parquet = error_of(tmp_path / "a.parquet", DocumentsConfig(text="contents"))
    delimited = error_of(tmp_path / "a.csv", DocumentsConfig(text="contents"))

    assert isinstance(parquet, ConfigError)
    assert str(parquet) == (
        f"{tmp_path / 'a.parquet'}: expected a column 'contents', found the columns 'id', "
        "'content', 'meta.lang', 'meta.n' (nearest: 'content'); set documents.text to the column "
        "that holds the text"
    )
    assert isinstance(delimited, ConfigError)
    assert "found the columns 'id', 'content' (nearest: 'content')" in str(delimited)


@pytest.mark.parametrize(
    ("text", "type_"),
    [("id", "int64"), ("meta", "struct<lang: string>"), ("tags", "list<element: string>")],
)
def test_a_column_that_holds_no_text_is_an_error_with_its_type(
    text: str, type_: str, tmp_path: Path
):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "meta": [{"lang": "c"}], "tags": [["a"]]}), path)

    error = error_of(path, DocumentsConfig(text=text))

    assert isinstance(error, ConfigError)
    assert f"expected a column '{text}' of strings or UTF-8 bytes, found {type_}" in str(error)


def test_a_column_that_is_there_twice_is_an_error(tmp_path: Path):
    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    arrays = [pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.Table.from_arrays(arrays, ["text", "text"]), tmp_path / "a.parquet")

    for name in ("a.csv", "a.parquet"):
        assert "expected one column 'text', found 2 of them" in str(error_of(tmp_path / name))


# Files


@pytest.mark.parametrize("num_bytes", [0, 3, 100, -1])
@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow"])
def test_a_truncated_file_is_an_error(name: str, num_bytes: int, tmp_path: Path):
    path = tmp_path / name
    table = pa.table({"text": ["some text"] * 1000})
    if name == "a.parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if name == "file.arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    path.write_bytes(path.read_bytes()[:num_bytes])

    error = error_of(path)

    assert isinstance(error, RawFileError)
    assert str(error).startswith(f"{path}: expected ")
    assert str(error).endswith("; download or make the file again, if it is .arrow at all") or (
        str(error).endswith("; download or make the file again, if it is .parquet at all")
    )


def test_an_arrow_stream_cut_between_two_messages_is_an_error(tmp_path: Path):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["some text"] * 10})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path.write_bytes(path.read_bytes()[:-8])

    assert "expected the mark that ends a stream" in str(error_of(path))


def test_damaged_pages_of_a_parquet_file_are_an_error(tmp_path: Path):
    path = tmp_path / "a.parquet"
    texts = [f"some text {row}" for row in range(1000)]
    pq.write_table(pa.table({"text": texts}), path, write_page_checksum=True, compression="none")
    damaged = bytearray(path.read_bytes())
    damaged[5000] ^= 1
    path.write_bytes(damaged)

    error = error_of(path)

    assert isinstance(error, RawFileError)
    assert "could not verify page integrity, CRC checksum verification failed" in str(error)


def test_arrow_offsets_that_lead_outside_the_data_are_an_error(tmp_path: Path):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["aaaa", "bbbb", "cccc"]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 4, 8, 12))
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, offsets[:4] + b"\xff\xff\xff\x7f" + offsets[8:]))

    assert isinstance(error_of(path), RawFileError)


@pytest.mark.parametrize("content", [b"", b"\n\n", b'id,"text'])
def test_a_csv_file_without_a_header_is_an_error(content: bytes, tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(content)

    error = error_of(path)

    assert isinstance(error, RawFileError)
    assert "expected a header with the names of the columns" in str(error)


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path):
    (tmp_path / "folder.txt").mkdir()

    for name, found in (("no.txt", "No such file or directory"), ("folder.txt", "Is a directory")):
        with pytest.raises(RawFileError, match=f"expected a file that can be read, found {found}"):
            read_documents(tmp_path / name, DocumentsConfig())

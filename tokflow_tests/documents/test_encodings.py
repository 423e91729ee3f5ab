"""Text in other encodings, and other delimiters: the same documents, lines as in the file."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import DocumentsConfig, Limit, Reject
from tokflow.documents.ranges import Range, open_range, ranges_of
from tokflow.errors import BadDocumentError, ConfigError, RawFileError
from tokflow_tests.documents.test_ranges import find, find_in_ranges
from tokflow_tests.reading import read, read_documents, rows_in, texts_in

CSV = 'id;text\n1;caf\xe9\n2;"two\n\xfc; lines"\n3\n4;\n5;a;"b\nc"\n6;' + "x\xe9" * 40 + "\n7;end\n"
LINES = "\xe9\n\nbc\r\n" + "\xe4" * 70 + "\nlast \xdf"
ENCODINGS = ["cp1252", "latin-1", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]
REJECT: dict[str, Any] = {"on_bad_document": "reject", "limit": Limit(document_bytes=100)}


def found_in(path: Path, config: DocumentsConfig) -> tuple[list[tuple[int, str]], list[Reject]]:
    rejects: list[Reject] = []
    batches = read(path, config, on_reject=rejects.append, batch_bytes=20)
    return list(zip(rows_in(batches), texts_in(batches), strict=True)), rejects


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("a.csv", CSV, {"delimiter": ";"}),
        ("a.csv", CSV.replace(";", "|") + "8|" + '"x\n' * 60, {"delimiter": "|"}),
        ("a.tsv.gz", CSV.replace(";", "\t"), {"keep_columns": ["id"]}),
        ("a.txt", LINES, {"document_per": "line"}),
        ("a.txt", LINES, {"document_per": "separator", "separator": "c\n\xe4"}),
        ("a.txt", LINES, {"document_per": "separator", "separator": "\n"}),
        ("a.txt", LINES, {}),
    ],
    ids=["quotes", "open quotes", "no quotes", "lines", "separator", "line ends", "whole"],
)
def test_a_file_has_the_documents_and_rejects_of_the_same_in_utf8(
    name: str, content: str, fields: dict[str, Any], encoding: Any, tmp_path: Path
):
    def write(path: Path, encoding: str) -> Path:
        data = content.encode(encoding)
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    same = write(tmp_path / f"same-{name}", "utf-8")
    path = write(tmp_path / name, encoding)

    expected, rejects = found_in(same, DocumentsConfig(**fields, **REJECT))
    found, moved = found_in(path, DocumentsConfig(encoding=encoding, **fields, **REJECT))

    assert found == expected
    assert [(each.row, each.line, each.reason) for each in moved] == [
        (each.row, each.line, each.reason) for each in rejects
    ]
    mark = len("".encode(encoding))
    assert [each.byte_offset for each in moved] == [
        mark + (each.byte_offset or 0) if encoding == "utf-8-sig" else None for each in rejects
    ]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8-sig"])
def test_ranges_are_as_the_whole_file(encoding: Any, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes("sep=;\n".encode(encoding) + CSV.encode(encoding.removesuffix("-sig")) * 3)
    config = DocumentsConfig(encoding=encoding, document_per="line", **REJECT)

    for ranges in (ranges_of(path, config, range_bytes=40), [Range(0, 3), Range(3, 900)]):
        assert len(ranges) > 1
        assert find_in_ranges(path, config, ranges) == find(path, config)


def test_utf16_is_read_whole_however_large(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("a\n" * 1000, encoding="utf-16")
    config = DocumentsConfig(encoding="utf-16", document_per="line")

    assert ranges_of(path, config, range_bytes=100) == ()
    with pytest.raises(ValueError, match="read whole"):
        open_range(path, config, Range(0, 10))


@pytest.mark.parametrize(
    ("encoding", "content", "said"),
    [
        ("cp1252", b"caf\xe9\nx \xe9\x81\nend", "CP1252, found no character at byte 3"),
        ("utf-16", "é\nx\ud800\nend".encode("utf-16", "surrogatepass"), "at byte 2, in"),
        ("utf-16-le", "é\nend".encode("utf-16-le") + b"a", "at byte 6, in b'e\\x00n"),
    ],
)
def test_a_byte_that_is_no_character_spoils_its_own_document(
    encoding: Any, content: bytes, said: str, tmp_path: Path
):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    config = DocumentsConfig(document_per="line", encoding=encoding)

    with pytest.raises(BadDocumentError, match="no character at byte") as caught:
        list(read_documents(path, config))
    found, rejects = found_in(path, config.model_copy(update={"on_bad_document": "reject"}))

    error = caught.value
    assert said in str(error)
    assert (error.row, error.line, error.byte_offset) == (1, 2, None)
    assert [(each.row, each.line, each.byte_offset) for each in rejects] == [(1, 2, None)]
    assert len(found) == content.count(b"\n")


@pytest.mark.parametrize(
    ("encoding", "content", "said"),
    [
        ("utf-16", b"a\0b\0", "utf-16 with its byte order mark, found none in b'a"),
        ("utf-8", "text\na".encode("utf-16"), "utf-8 text, found the byte order mark of utf-16-le"),
        ("cp1252", "text\na".encode("utf-8-sig"), "cp1252 .* byte order mark of utf-8;"),
        ("utf-16", "text\na".encode("utf-32"), "found the byte order mark of utf-32-le; set"),
    ],
)
def test_a_byte_order_mark_of_another_encoding_is_an_error(
    encoding: Any, content: bytes, said: str, tmp_path: Path
):
    path = tmp_path / "a.csv"
    path.write_bytes(content)

    with pytest.raises(RawFileError, match=said):
        list(read_documents(path, DocumentsConfig(encoding=encoding, on_bad_document="reject")))


# Delimiters and quotes


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id;stars;text\n1;5;a\n", 'more of ";"; set documents.delimiter to ";"'),
        (b'"id, no";"text"\n1;a\n', 'more of ";"; set documents.delimiter to ";"'),
        (b"a\ttext\tb,c\n", r'more of "\\t"; set documents.delimiter to "\\t", or'),
        (b"sep=;\nid;text\n1;a\n", 'that names ";"; set documents.delimiter to ";"'),
        (b"sep=\xa7\ntext\nx\n", "expected a column 'text', found"),
    ],
)
def test_a_header_with_more_of_another_delimiter_names_it(
    content: bytes, said: str, tmp_path: Path
):
    path = tmp_path / "a.csv"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=said):
        list(read_documents(path, DocumentsConfig()))


def test_a_delimiter_that_is_named_is_taken_whatever_the_header_has(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("a|b|c,text\n1,x\n")

    assert found_in(path, DocumentsConfig(delimiter=","))[0] == [(0, "x")]


def test_excels_line_is_no_header(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"sep=;"\r\nid;text\r\n1;a\r\n2\r\n')

    found, rejects = found_in(path, DocumentsConfig(delimiter=";", on_bad_document="reject"))

    assert found == [(0, "a")]
    assert [(each.row, each.line, each.byte_offset) for each in rejects] == [(1, 4, 26)]

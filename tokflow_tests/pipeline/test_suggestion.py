import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import DocumentsConfig
from tokflow.errors import BadDocumentError, ConfigError
from tokflow.pipeline import suggestion
from tokflow.pipeline.suggestion import suggest

LONG = "some words of text. " * 5


def jsonl(path: Path, records: Iterable[Any]) -> str:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def test_the_text_is_in_the_column_that_has_most_of_it(tmp_path: Path):
    records = [{"id": f"{n:09}", "meta": {"body": LONG}, "url": "http://a/b/c"} for n in range(9)]

    found = suggest([jsonl(tmp_path / "a.jsonl", [*records, {"id": "x" * 500}])])

    assert found.documents["text"] == "meta.body"  # one record alone has a longer id
    assert found.others == ("id", "url")


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"url": LONG, "content": "x"}, "content"),
        ({"title": LONG, "Text": "x", "body": LONG}, "Text"),
        ({"page_id": LONG, "file_name": LONG, "summary": "x"}, "summary"),
        ({"title": "x", "abstract": LONG}, "abstract"),
    ],
)
def test_names_count_before_lengths(tmp_path: Path, record: dict[str, str], text: str):
    assert suggest([jsonl(tmp_path / "a.jsonl", [record])]).documents["text"] == text


def test_a_url_alone_is_no_text(tmp_path: Path):
    path = jsonl(tmp_path / "a.jsonl", [{"url": LONG, "n": 1}])

    with pytest.raises(ConfigError, match="no field that holds text; fields: 'url'; name a field"):
        suggest([path])
    assert suggest([path], text="url").documents == {"text": "url"}


@pytest.mark.parametrize(
    ("characters", "size"),
    [(10**3, 512), (10**6, 512), (2 * 10**6, 1024), (10**7, 8192), (10**12, 32_768)],
)
def test_a_vocabulary_has_an_id_for_each_thousand_characters(characters: int, size: int):
    assert suggestion._vocab_size(characters) == size


def test_a_file_without_documents_is_passed_over(tmp_path: Path):
    jsonl(tmp_path / "a.jsonl", [])
    jsonl(tmp_path / "b.jsonl", [{"content": "x"}])

    assert suggest([f"{tmp_path}/*.jsonl"]).documents == {"text": "content"}


def test_records_without_text_are_rejected_and_the_first_is_named(tmp_path: Path):
    found = suggest([jsonl(tmp_path / "a.jsonl", [{"text": "x"}, {"text": None}])])

    assert found.documents == {"text": "text", "on_bad_document": "reject"}
    assert found.first_reject == "a.jsonl, row 1, line 2: expected a string in 'text', found null"


def test_no_more_is_read_than_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suggestion, "ENOUGH_CHARACTERS", 1000)
    jsonl(tmp_path / "a.jsonl", [{"text": "x" * 20_000}] * 300)
    (tmp_path / "b.jsonl").write_text("no JSON")

    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    assert not suggestion._count(paths, DocumentsConfig()).is_all
    assert "on_bad_document" not in suggest([f"{tmp_path}/*"]).documents


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("a\nb\n", {"document_per": "file"}),
        ("a\n<|endoftext|>\nb", {"document_per": "separator", "separator": "<|endoftext|>\n"}),
        ("a<|endoftext|>b", {"document_per": "separator", "separator": "<|endoftext|>"}),
    ],
)
def test_documents_of_a_txt_file(tmp_path: Path, text: str, documents: dict[str, str]):
    (tmp_path / "a.txt").write_text(text)

    assert suggest([f"{tmp_path}/a.txt"]).documents == documents


def test_a_large_txt_file_is_one_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suggestion, "LARGE_TXT_BYTES", 3)
    (tmp_path / "a.txt").write_text("a\nb\n")

    assert suggest([f"{tmp_path}/a.txt"]).documents == {"document_per": "line"}


def test_delimiter_and_encoding_of_a_csv_are_suggested(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes("sep=;\nid;text\n1;gr\xf6\xdfe\n".encode("cp1252"))

    suggested = suggest([str(tmp_path / "a.csv")])

    expected = {"text": "text", "delimiter": ";", "encoding": "cp1252"}
    assert suggested.documents == expected


@pytest.mark.parametrize(
    ("first", "found"),
    [("", "expected valid UTF-8, found .*; fix the line"), ('{"text": null}\n', "found null")],
)
def test_a_column_in_another_encoding_is_not_passed_over(first: str, found: str, tmp_path: Path):
    text = f'{first}{{"id": "1", "text": "gr\xf6\xdfe"}}\n'
    (tmp_path / "a.jsonl").write_bytes(text.encode("latin-1"))

    with pytest.raises(BadDocumentError, match=found):
        suggest([f"{tmp_path}/a.jsonl"])


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ('{"a": 1}\n', ConfigError, "found no field that holds text; name a field by --text"),
        ('{"a": ""}\n', ConfigError, "no field that holds text; fields: 'a'; name a field by"),
        (
            "no JSON\n",
            BadDocumentError,
            "invalid character (byte 4)); fix the line, or name other files",
        ),
        ("", ConfigError, "expected raw files with text, found none; name other files"),
        (
            '{"a": {"m": [{"role": "user", "content": "a"}]}}\n',
            ConfigError,
            "found chats alone, in 'a.m'; declare `documents: {messages: a.m}`",
        ),
    ],
)
def test_where_no_column_has_text_the_reader_says_why(
    tmp_path: Path, content: str, error: type[Exception], message: str
):
    (tmp_path / "a.jsonl").write_text(content)

    with pytest.raises(error) as raised:
        suggest([f"{tmp_path}/a.jsonl"])

    assert message in str(raised.value)

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import DocumentsConfig
from tokflow.errors import BadDocumentError, ConfigError
from tokflow.pipeline import suggestion
from tokflow.pipeline.raw_patterns import name_of, patterns_of, shortened_to
from tokflow.pipeline.suggestion import chat_fields, suggest
from tokflow_tests.chats import chat

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
        ("a\n", {"document_per": "file"}),
        ("a\nb\n" * 9, {"document_per": "line"}),
        ("a\n<|endoftext|>\nb", {"document_per": "separator", "separator": "<|endoftext|>\n"}),
        ("a<|endoftext|>b", {"document_per": "separator", "separator": "<|endoftext|>"}),
    ],
)
def test_documents_of_a_txt_file(
    text: str, documents: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(suggestion, "LARGE_TXT_BYTES", 30)
    (tmp_path / "a.txt").write_text(text)

    assert suggest([f"{tmp_path}/a.txt"]).documents == documents


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


HERE = Path("a.jsonl")
CHAT = chat("a", "b")
CALL = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": []}]
SHAREGPT = [{"from": "human", "value": "a"}]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": CHAT}, {"messages": "messages"}),
        ({"messages": json.dumps(CHAT)}, {"messages": "messages"}),
        ({"messages": CALL, "text": "x"}, {"messages": "messages"}),
        ({"dialog": CHAT}, {"messages": "dialog"}),
        ({"dialog": CHAT, "conversations": CHAT}, {"messages": "conversations"}),
        ({"c": SHAREGPT}, {"messages": "c", "chat_format": "sharegpt"}),
        (
            {"messages": CHAT, "tools": "[]", "chat_template_kwargs": {"a": 1}, "system": "s"},
            {
                "messages": "messages",
                "tools": "tools",
                "chat_template_kwargs_column": "chat_template_kwargs",
                "system": "system",
            },
        ),
        ({"messages": CHAT, "tools": None, "system": None}, {"messages": "messages"}),
        (
            {"prompt": SHAREGPT, "completion": SHAREGPT},
            {"prompt": "prompt", "completion": "completion", "chat_format": "sharegpt"},
        ),
        ({"prompt": "a", "completion": "b"}, {"prompt": "prompt", "completion": "completion"}),
        ({"instruction": "a", "output": "b", "text": "c"}, {"chat_format": "alpaca"}),
        ({"instruction": "a", "output": "b", "system": "c"}, {"chat_format": "alpaca"}),
        (
            {"instruction": "a", "response": "b"},
            {"prompt": "instruction", "completion": "response"},
        ),
        ({"prompt": "a", "text": "b"}, None),
        ({"instruction": "a", "output": 5}, None),
        ({"messages": []}, None),
        ({"messages": "[not JSON"}, None),
        ({"messages": [CHAT]}, None),
        ({}, None),
    ],
)
def test_records_of_chats_are_recognised(record: dict[str, Any], expected: dict[str, str] | None):
    assert chat_fields([record], HERE) == expected
    assert chat_fields([dict.fromkeys(record), record], HERE) == expected


def test_columns_of_different_layouts_are_no_chats():
    records = [{"messages": CHAT}, {"messages": SHAREGPT}]

    assert chat_fields(records, HERE) is None


@pytest.mark.parametrize(
    ("answers", "remedy"),
    [(("a", "b"), "{prompt: prompt, completion: chosen}"), ((CHAT, CHAT), "{messages: chosen}")],
)
def test_preference_pairs_are_refused(answers: tuple[Any, Any], remedy: str):
    with pytest.raises(ConfigError) as caught:
        chat_fields([{"chosen": answers[0], "rejected": answers[1]}], HERE)

    assert caught.value.where == "a.jsonl"
    assert remedy in caught.value.remedy


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


@pytest.mark.parametrize(
    ("named", "expected", "name"),
    [
        (["raw/a.jsonl"], ["raw/a.jsonl"], "a"),
        (["raw/*.jsonl"], ["raw/*.jsonl"], "raw"),
        (["raw/a.jsonl", "raw/b.jsonl"], ["raw/*.jsonl"], "raw"),  # a glob that the shell resolved
        (["raw/a.jsonl", "raw/c.json"], ["raw/a.jsonl", "raw/c.json"], "raw"),
        (["few/a.txt", "few/b.txt"], ["few/a.txt", "few/b.txt"], "few"),  # not all of them
        (["few/b.txt", "few/b2.txt"], ["few/b*.txt"], "few"),
        (["set/1/x-00.txt", "set/2/x-07.txt"], ["set/*/*.txt"], "set"),
        (["raw/../raw/./a.jsonl"], ["raw/a.jsonl"], "a"),
        (["t.parquet"], ["t.parquet"], "t"),  # Spark's folder is read as one table
        (["deep"], ["deep/**/*.csv.gz"], "deep"),
        (["odd/[1].txt"], ["odd/[[]1].txt"], "1"),
        (["odd"], ["odd/*.txt"], "odd"),
        (["data"], ["data/*.csv", "data/x/**/*.csv"], "data"),  # and not data/**/*.csv
        (["data/*/*.csv"], ["data/*/*.csv"], "data"),
        (["~no"], ["~no/*.txt"], "no"),
        (["~no/*.txt"], ["~no/*.txt"], "no"),  # no home folder, for there is no such user
    ],
)
def test_patterns_are_those_that_a_person_would_write(
    tmp_path: Path, named: list[str], expected: list[str], name: str
):
    files(tmp_path, "raw/a.jsonl", "raw/b.jsonl", "raw/c.json", "t.parquet/part-0.parquet")
    files(tmp_path, "few/a.txt", "few/b.txt", "few/b2.txt", "set/1/x-00.txt", "set/2/x-07.txt")
    files(tmp_path, "deep/x/a.csv.gz", "deep/b.csv.gz", "deep/README", "odd/[1].txt", "~no/a.txt")
    files(tmp_path, "data/a.csv", "data/x/y/b.csv", "data/x/c.csv", "data/store/x/y/z.csv")

    patterns = patterns_of(named, here=tmp_path, store=tmp_path / "data/store")

    assert shortened_to(tmp_path, patterns) == expected
    assert name_of(patterns) == name


def test_of_a_folder_the_format_with_most_bytes_is_taken(tmp_path: Path):
    files(tmp_path, "README.txt", "a.parquet", "b.parquet")
    (tmp_path / "a.parquet").write_text("larger than the rest")

    patterns = patterns_of(["."], here=tmp_path, store=tmp_path / "store")

    assert shortened_to(tmp_path, patterns) == ["*.parquet"]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("https://user:secret@host/a.jsonl", "found a URL; download one of the files"),
        ("empty", "found no file; name another folder"),
        ("data/store", "found no file; name another folder"),
        ("data/**/*.txt", "found a path or glob that matches files in it; name the folders"),
        ("*/*/*/*.txt", "found a path or glob that matches files in it"),
        ("*/store/**", "found a path or glob that matches files in it"),
        ("data/store/x/a.txt", "expected raw files outside of .*/data/store, where all outputs go"),
    ],
)
def test_what_cannot_be_looked_at_is_an_error(tmp_path: Path, named: str, message: str):
    (tmp_path / "empty").mkdir()
    files(tmp_path, "data/store/x/a.txt")

    with pytest.raises(ConfigError, match=message) as raised:
        patterns_of([named], here=tmp_path, store=tmp_path / "data/store")

    assert "secret" not in str(raised.value)

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig
from tokflow.documents.formats import check_columns, columns_of, first_records, likely_fields
from tokflow_tests.reading import write_records

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

RECORD: dict[str, Any] = {
    "id": 7, "text": "one", "meta": {"inner": {"title": "t"}, "lang": "en", "size": 3},
    "tags": ["x"], "chat": CHAT,
}  # fmt: skip


def write(path: Path) -> Path:
    table = pa.Table.from_pylist([RECORD])
    if ".jsonl" in path.name:
        data = f"\n{json.dumps(RECORD)}\n[1]\nno JSON\n".encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    elif path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file:
            new = pa.ipc.new_stream if path.stem == "stream" else pa.ipc.new_file
            with new(file, table.schema) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow", "stream.arrow"])
def test_strings_and_chats_are_found_nested_ones_by_their_path(tmp_path: Path, name: str):
    found = columns_of(write(tmp_path / name), DocumentsConfig())

    assert found.texts == ["text", "meta.inner.title", "meta.lang"]
    assert found.chats == ["chat"]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
def test_of_csv_and_tsv_they_are_those_of_the_header(tmp_path: Path, name: str, delimiter: str):
    path = tmp_path / name
    path.write_text(f'id{delimiter}"the ""text"""\n7{delimiter}one\n')

    assert columns_of(path, DocumentsConfig(quoting="double")).texts == ["id", 'the "text"']


def test_a_key_with_a_dot_is_none_for_no_config_can_name_it(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a.b": "x", "a": {"c": "y"}}\n{"d": "z"}\n')

    assert columns_of(path, DocumentsConfig()).texts == ["a.c", "d"]


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("a.csv", b"id,text\n1;2;3,b\n", {}),
        ("a.csv", b"id|text\n", {"delimiter": "|"}),
        ("a.csv.gz", b'"id\t";"text"\n', {"delimiter": ";"}),
        ("a.csv", b'"sep=\t"\r\nid\ttext\r\n', {"delimiter": "\t"}),
        ("a.csv", b'sep="\n', {}),
        ("a.csv", "id;text\n1;é".encode("utf-16"), {"encoding": "utf-16", "delimiter": ";"}),
        ("a.tsv", b'text\n"a ""quote"""\n', {"quoting": "double"}),
        ("a.tsv", b'text\n"a" or "b"\n"a"\n', {}),
        ("a.txt", "café".encode("cp1252"), {"encoding": "cp1252"}),
        ("a.txt", "café".encode() + b"\xe9", {}),
        ("a.txt", b"\x81\xe9", {}),
        ("a.jsonl", "café".encode("cp1252"), {}),
    ],
)
def test_the_start_of_a_file_says_how_it_may_be_read(
    name: str, content: bytes, fields: dict[str, str], tmp_path: Path
):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    assert likely_fields(path, DocumentsConfig()) == fields


RECORDS_OF_ALL = [{"a": f"{n}", "b": "x"} for n in range(150)]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet", "arrow"])
def test_the_first_records_are_read_as_json_has_them(suffix: str, tmp_path: Path):
    path = write_records(tmp_path / f"a.{suffix}", RECORDS_OF_ALL)

    found = first_records(path, DocumentsConfig())

    assert found == RECORDS_OF_ALL[:100]


def test_bad_records_and_fields_that_no_config_can_name_are_not_among_the_first(tmp_path: Path):
    lines = ['{"a": 1, "b.c": 2, "\\"": 3, "d": null}', "no JSON", '{"a": [4]}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "a.csv").write_text("a,a,,b\n1,2,3,4\n")
    (tmp_path / "a.txt").write_text("a\n")

    def first(name: str) -> list[dict[str, Any]]:
        return first_records(tmp_path / name, DocumentsConfig())

    assert first("a.jsonl") == [{"a": 1}, {"a": [4]}]
    assert first("a.csv") == [{"b": "4"}]
    assert first("a.txt") == []


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ["tools", "chat_template_kwargs"]),
        ({"chat_template": "{{ messages }}"}, ["chat_template_kwargs"]),
        ({"chat_template": "{{ tools }}"}, ["tools", "chat_template_kwargs"]),
        ({"tools": "tools"}, ["chat_template_kwargs"]),
        ({"chat_template_kwargs_column": "chat_template_kwargs"}, ["tools"]),
    ],
)
def test_columns_that_a_template_would_get_are_told_of(
    suffix: str,
    fields: dict[str, str],
    told: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    record = {"messages": "[]", "tools": "[]", "chat_template_kwargs": "{}"}
    path = write_records(tmp_path / f"a.{suffix}", [record])

    check_columns(path, DocumentsConfig(messages="messages", **fields))

    messages = "".join(of.message for of in caplog.records)
    assert re.findall("records have ([a-z_]+),", messages) == told

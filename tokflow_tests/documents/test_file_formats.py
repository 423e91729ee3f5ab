import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig
from tokflow.documents.file_formats import likely_fields, text_columns

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

RECORD: dict[str, Any] = {
    "id": 7,
    "text": "one",
    "meta": {"inner": {"title": "t"}, "lang": "en", "size": 3},
    "tags": ["x"],
    "chat": CHAT,
}


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
    found = text_columns(write(tmp_path / name), DocumentsConfig())

    assert found[0] == ["text", "meta.inner.title", "meta.lang"]
    assert found[1] == ["chat"]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
def test_of_csv_and_tsv_they_are_those_of_the_header(tmp_path: Path, name: str, delimiter: str):
    path = tmp_path / name
    path.write_text(f'id{delimiter}"the ""text"""\n7{delimiter}one\n')

    assert text_columns(path, DocumentsConfig(quoting="double"))[0] == ["id", 'the "text"']


def test_a_key_with_a_dot_is_none_for_no_config_can_name_it(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a.b": "x", "a": {"c": "y"}}\n{"d": "z"}\n')

    assert text_columns(path, DocumentsConfig())[0] == ["a.c", "d"]


def test_txt_has_none(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("{}")

    assert text_columns(path, DocumentsConfig()) == ([], [])


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

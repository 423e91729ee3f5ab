import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, Limit, Reject, deciding_fields
from tokflow.errors import BadDocumentError, ConfigError
from tokflow_tests.reading import read_documents

RECORDS = [
    {"title": "One", "meta": {"body": "größe"}, "other": "x"},
    {"title": "", "meta": {"body": ""}, "other": "x"},
    {"title": "Drei 😀", "meta": {"body": "b\nc"}, "other": "x"},
]
TEXTS = ["größe -- One", " -- ", "b\nc -- Drei 😀"]
JOINED = DocumentsConfig(text=("meta.body", "title"), join=" -- ")
JSONL = {Path("a.jsonl"): 100}
FLAT = DocumentsConfig(text=("body", "title"), join=" -- ", quoting="double")


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    """Write the records in the format of the suffix; csv and tsv have `body` and no nesting."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix in (".csv", ".tsv"):
        comma = {".csv": ",", ".tsv": "\t"}[path.suffix]
        lines = [f'"{r["title"]}"{comma}"{r["meta"]["body"]}"\n' for r in records]
        path.write_text(f"title{comma}body\n{''.join(lines)}")
    else:
        table = pa.Table.from_pylist(records)
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=2)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl", "csv", "tsv"])
@pytest.mark.parametrize("batch_bytes", [1, 2_000_000])
def test_a_record_is_one_document_of_its_columns_in_the_order_named(
    suffix: str, batch_bytes: int, tmp_path: Path
):
    config = FLAT if suffix in ("csv", "tsv") else JOINED
    path = write(tmp_path / f"a.{suffix}", RECORDS)

    batches = list(read_documents(path, config, batch_bytes=batch_bytes))

    assert [text for batch in batches for text in batch.texts.to_pylist()] == TEXTS
    assert [row for batch in batches for row in batch.rows.tolist()] == [0, 1, 2]
    assert [num for batch in batches for num in batch.num_chars.tolist()] == [12, 4, 13]
    assert all(batch.loss_spans is None for batch in batches)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_a_record_with_a_null_column_is_one_bad_document(suffix: str, tmp_path: Path):
    records = [*RECORDS, {"title": None, "meta": {"body": None}, "other": "x"}, RECORDS[0]]
    records[1] = {**records[1], "title": None}
    path = write(tmp_path / f"a.{suffix}", records)
    rejecting = DocumentsConfig(text=("meta.body", "title"), join=" -- ", on_bad_document="reject")
    rejects: list[Reject] = []

    [batch] = read_documents(path, rejecting, on_reject=rejects.append)

    assert batch.rows.tolist() == [0, 2, 4]
    assert batch.texts.to_pylist() == [TEXTS[0], TEXTS[2], TEXTS[0]]
    assert [reject.row for reject in rejects] == [1, 3]
    assert all("found null" in reject.reason for reject in rejects)
    with pytest.raises(BadDocumentError, match="row 1"):
        list(read_documents(path, JOINED))


def test_a_record_that_lacks_a_column_is_bad(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x", "b": "y"}\n\n{"a": "x"}\n')
    config = DocumentsConfig(text=("a", "b"), join="", on_bad_document="reject")
    rejects: list[Reject] = []

    [batch] = read_documents(path, config, on_reject=rejects.append)

    assert batch.texts.to_pylist() == ["xy"]
    assert [(reject.row, reject.line, reject.byte_offset) for reject in rejects] == [(1, 3, 22)]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_two_broken_halves_of_a_character_make_no_text(suffix: str, tmp_path: Path):
    euro = "€".encode()
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        table = pa.table({"a": pa.array([b"x", euro[:1]]), "b": pa.array([b"y", euro[1:]])})
        pq.write_table(table, path)
    else:
        path.write_bytes(b"a,b\nx,y\n" + euro[:1] + b"," + euro[1:] + b"\n")
    config = DocumentsConfig(text=("a", "b"), join="", on_bad_document="reject")
    rejects: list[Reject] = []

    [batch] = read_documents(path, config, on_reject=rejects.append)

    assert batch.texts.to_pylist() == ["xy"]
    assert [reject.row for reject in rejects] == [1]
    assert "expected valid UTF-8" in rejects[0].reason


def test_the_limit_counts_records(tmp_path: Path):
    path = write(tmp_path / "a.parquet", RECORDS)
    config = DocumentsConfig(text=("meta.body", "title"), join="", limit=Limit(documents=2))

    [batch] = read_documents(path, config)

    assert batch.rows.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"join": " "}, "documents.join: expected null, for text is not several columns"),
        ({"text": "a", "join": " "}, "documents.join: expected null, for text is not several"),
        ({"prompt": "a", "completion": "b", "join": " "}, "documents.join: expected null"),
        ({"text": "a", "messages": "b"}, "documents.messages: expected one of text, messages, or"),
        ({"prompt": "a"}, "documents.completion: expected a field, for there is a prompt"),
        ({"completion": "a"}, "documents.prompt: expected a field, for there is a completion"),
        ({"messages": "a", "prompt": "b", "completion": "c"}, "documents.prompt: expected one of"),
        ({"prompt": "a", "completion": "a"}, "documents.completion: expected another field than"),
        ({"messages": ""}, "documents.messages: expected the name of a field, found ''"),
        ({"chat_template": "x"}, "documents.chat_template: expected null, for there are no messag"),
        ({"messages": "a", "format": "txt"}, "documents.format: expected a format with fields"),
    ],
)
def test_a_config_of_columns_that_cannot_be_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        DocumentsConfig(**fields)

    assert str(caught.value).startswith(message)


def test_what_is_joined_decides_the_content():
    one_each = deciding_fields(DocumentsConfig(text=("a", "b")), JSONL)

    assert one_each != deciding_fields(DocumentsConfig(text=("a", "b"), join=""), JSONL)
    assert deciding_fields(DocumentsConfig(), JSONL) == deciding_fields(
        DocumentsConfig(text="text"), JSONL
    )


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("documents", "remedy"),
    [
        ({"messages": "messages"}, "set documents.messages to the field that holds the chat"),
        ({"prompt": "a", "completion": "b"}, "set documents.prompt and documents.completion to"),
    ],
)
def test_a_missing_column_of_a_chat_says_which_field_to_set(
    documents: dict[str, Any], remedy: str, suffix: str, tmp_path: Path
):
    path = write(tmp_path / f"a.{suffix}", RECORDS)

    with pytest.raises((ConfigError, BadDocumentError)) as caught:
        list(read_documents(path, DocumentsConfig(**documents), render=lambda found: found))

    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("documents", "field"),
    [
        ({"prompt": 'a"', "completion": "b"}, "prompt"),
        ({"prompt": "a", "completion": 'b"'}, "completion"),
        ({"messages": 'a"'}, "messages"),
        ({"text": ("a", 'b"')}, "text"),
    ],
)
def test_the_name_of_a_field_that_cannot_be_read_is_found_in_the_config(
    documents: dict[str, Any], field: str, tmp_path: Path
):
    path = write(tmp_path / "a.jsonl", RECORDS)

    with pytest.raises(ConfigError, match=rf"^documents\.{field}: expected a field without quo"):
        list(read_documents(path, DocumentsConfig(**documents), render=lambda found: found))

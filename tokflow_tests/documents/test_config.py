import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import DocumentsConfig, deciding_fields
from tokflow.errors import ConfigError
from tokflow_tests.reading import read_documents, texts_of

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "text"),
    ({"text": ()}, "text"),
    ({"text": ("a", "a")}, "text"),
    ({"format": "xml"}, "format"),
    ({"document_per": "page"}, "document_per"),
    ({"document_per": "line", "format": "csv"}, "document_per"),
    ({"document_per": "separator", "separator": ""}, "separator"),
    ({"document_per": "line", "separator": "x"}, "separator"),
    ({"on_bad_document": "skip"}, "on_bad_document"),
    ({"max_rejects": -1}, "max_rejects"),
    ({"limit": {"documents": 0}}, "limit.documents"),
    ({"limit": {"characters": -1}}, "limit.characters"),
    ({"limit": {"document_bytes": 0}}, "limit.document_bytes"),
    ({"join": " "}, "join"),
    ({"text": "a", "join": " "}, "join"),
    ({"prompt": "a", "completion": "b", "join": " "}, "join"),
    ({"transform": "a:b", "text": ("c", "d"), "join": " "}, "join"),
    ({"text": "a", "messages": "b"}, "messages"),
    ({"messages": ""}, "messages"),
    ({"prompt": "a"}, "completion"),
    ({"prompt": "a", "completion": "a"}, "completion"),
    ({"completion": "a"}, "prompt"),
    ({"messages": "a", "prompt": "b", "completion": "c"}, "prompt"),
    ({"chat_template": "x"}, "chat_template"),
    ({"text": "a", "chat_format": "alpaca"}, "chat_format"),
    ({"chat_format": "sharegpt"}, "chat_format"),
    ({"messages": "a", "chat_format": "alpaca"}, "messages"),
    ({"prompt": "a", "completion": "b", "chat_format": "alpaca"}, "prompt"),
    ({"messages": "a", "chat_format": "openai"}, "chat_format"),
    ({"messages": "a", "tools": "a"}, "tools"),
    ({"messages": "a", "tools": ""}, "tools"),
    ({"chat_format": "alpaca", "tools": "input"}, "tools"),
    ({"tools": "a"}, "tools"),
    ({"prompt": "a", "completion": "b", "system": "c"}, "system"),
    ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ({"messages": "a", "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ({"messages": "a", "chat_template_kwargs": {"x": date(2026, 1, 1)}}, "chat_template_kwargs.x"),
    ({"messages": "a", "chat_template_kwargs": {"x": [1e999]}}, "chat_template_kwargs.x[0]"),
    ({"messages": "a", "format": "txt"}, "format"),
    ({"transform": "clean"}, "transform"),
    ({"transform": "a.b:c.d"}, "transform"),
    ({"transform_version": 2}, "transform_version"),
    ({"messages": ("a", "b")}, "messages"),
    ({"transform": "a:b", "messages": ()}, "messages"),
    ({"transform": "a:b", "messages": ("a", "a")}, "messages"),
    ({"transform": "a:b", "messages": "a", "tools": "b"}, "tools"),
    ({"transform": "a:b", "chat_format": "alpaca"}, "transform"),
    ({"transform": "a:b", "prompt": "a", "completion": "b"}, "transform"),
    ({"delimiter": "::"}, "delimiter"),
    ({"delimiter": '"'}, "delimiter"),
    ({"delimiter": ";", "format": "jsonl"}, "delimiter"),
    ({"encoding": "cp1252", "format": "parquet"}, "encoding"),
]


@pytest.mark.parametrize(("fields", "where"), REFUSED)
def test_fields_that_cannot_be_or_do_not_go_together_are_refused(
    fields: dict[str, Any], where: str
):
    with pytest.raises(ConfigError) as caught:
        DocumentsConfig(**fields)

    assert caught.value.where == f"documents.{where}"


def test_an_unknown_suffix_is_an_error_unless_a_format_is_named(tmp_path: Path):
    path = tmp_path / "a.py"
    path.write_text("import this\n")

    with pytest.raises(ConfigError, match=r"found '\.py'; "):
        next(read_documents(path, DocumentsConfig()))
    assert texts_of(path, DocumentsConfig(format="txt")) == ["import this\n"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"prompt": 'a"', "completion": "b"}, "prompt"),
        ({"prompt": "a", "completion": 'b"'}, "completion"),
        ({"messages": 'a"'}, "messages"),
        ({"text": ("a", 'b"')}, "text"),
    ],
)
def test_a_json_field_that_cannot_be_looked_up_is_refused(
    fields: dict[str, Any], name: str, tmp_path: Path
):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({'a"': "text"}))

    with pytest.raises(ConfigError, match="expected a field without quotes") as caught:
        list(read_documents(path, DocumentsConfig(**fields), render=lambda found: found))

    assert caught.value.where == f"documents.{name}"


def test_fields_decide_a_recipe_only_where_they_matter():
    def of(name: str, **fields: Any) -> dict[str, Any]:
        return deciding_fields(DocumentsConfig(**fields), {Path(name): 10})

    assert of("a.csv", delimiter=",", quoting="double", encoding="utf-8-sig") == of("a.csv")
    assert of("a.tsv", delimiter="\t", quoting="none") == of("a.tsv")
    assert of("a.jsonl", delimiter=";", quoting="none", encoding="cp1252") == of("a.jsonl")
    assert of("a.txt", delimiter=";", quoting="none") == of("a.txt")
    assert of("a.jsonl", text="text") == of("a.jsonl")
    assert of("a.jsonl", text=("a", "b")) != of("a.jsonl", text=("a", "b"), join="")
    for fields in ({"delimiter": ";"}, {"quoting": "none"}, {"encoding": "cp1252"}):
        assert of("a.csv", **fields) == {**of("a.csv"), **fields}
    assert of("a.txt", encoding="utf-16") == {**of("a.txt"), "encoding": "utf-16"}

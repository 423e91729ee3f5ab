import json
from pathlib import Path

import pytest

from tokflow.documents import DocumentsConfig, Limit
from tokflow.errors import ConfigError
from tokflow_tests.reading import read_documents


def test_an_unknown_suffix_is_an_error_with_the_known_ones(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        next(read_documents(tmp_path / "a.xml.gz", DocumentsConfig()))

    assert "found '.xml.gz';" in str(caught.value)


def test_a_format_that_is_named_goes_before_the_suffix(tmp_path: Path):
    path = tmp_path / "a.py"
    path.write_text("import this\n")

    [batch] = read_documents(path, DocumentsConfig(format="txt"))

    assert batch.texts.to_pylist() == ["import this\n"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": ""}, "documents.text: expected the name of a column, or several, found ''"),
        ({"text": ()}, "documents.text: expected the name of a column, or several, found ()"),
        ({"text": ("a", "a")}, "documents.text: expected each column once, found ('a', 'a')"),
        ({"format": "xml"}, "documents.format: expected one of auto, parquet, jsonl, csv, tsv"),
        ({"document_per": "page"}, "documents.document_per: expected one of file, line, separator"),
        ({"on_bad_document": "skip"}, "documents.on_bad_document: expected one of error, reject"),
        ({"max_rejects": -1}, "documents.max_rejects: expected 0 or more, found -1"),
        (
            {"document_per": "separator", "separator": ""},
            "documents.separator: expected the text between documents, for document_per is "
            "separator, found ''; correct documents.separator",
        ),
        (
            {"document_per": "line", "separator": "x"},
            "documents.separator: expected `document_per: separator` beside it, which is line, or "
            "null, found 'x'; correct documents.separator",
        ),
        (
            {"document_per": "line", "format": "csv"},
            "documents.document_per: expected file, for csv has its own records, found 'line'",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        DocumentsConfig(**fields)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("fields", [{"documents": 0}, {"characters": -1}, {"document_bytes": 0}])
def test_a_limit_below_one_is_refused(fields: dict[str, int]):
    with pytest.raises(
        ConfigError, match=r"expected 1 or more, found .*; raise it(, or leave it out)?$"
    ):
        Limit(**fields)


def test_columns_may_come_as_a_list_as_yaml_has_them():
    assert DocumentsConfig(text=["a", "b"]) == DocumentsConfig(text=("a", "b"))


def test_a_json_field_that_cannot_be_looked_up_is_refused(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({'a"b': "text"}))

    with pytest.raises(ConfigError, match="expected a field without quotes"):
        list(read_documents(path, DocumentsConfig(text='a"b')))

from pathlib import Path

from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import write_yaml


def test_a_token_is_traced_to_its_character(store: Path):
    result = run("trace", store / "exports/bin", "--token", "5")

    assert result.stdout == "a.jsonl:1  characters 1 to 2  (1 token at 5)\n  'w'\n"


def test_a_sequence_is_traced_to_its_documents(store: Path):
    document = json_of("trace", store / "exports/parquet", "--sequence", "0")

    assert [origin["text"] for origin in document["origins"]] == ["one", "two "]


def test_a_token_that_stands_for_no_character_is_said_to_be_eos(store: Path):
    result = run("trace", store / "exports/bin", "--token", "3")

    assert result.stdout == "a.jsonl:0  no character, at 3  (1 token at 3)\n  EOS\n"


def test_a_kept_column_is_told_where_its_document_has_it(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text('{"text": "a", "url": "u"}\n{"text": "b"}\n')
    documents = {"keep_columns": ["url"]}
    config = write_yaml(tmp_path, documents=documents, packing={"sequence_length": 4})
    run("run", "--config", config)

    result = run("trace", tmp_path / "store/small/exports/parquet", "--sequence", "0")

    assert result.stdout == (
        "a.jsonl:0  characters 0 to 1  (2 tokens at 0-1)\n  'a'\n  url: u\n"
        "a.jsonl:1  characters 0 to 1  (2 tokens at 2-3)\n  'b'\n"
    )

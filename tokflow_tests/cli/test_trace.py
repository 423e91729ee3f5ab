from pathlib import Path

from tokflow_tests.cli.commands import json_of, run


def test_a_token_is_traced_to_its_character(store: Path):
    result = run("trace", store / "exports/bin", "--token", "5")

    assert result.stdout == "a.jsonl:1  characters 1 to 2  (1 token at 5)\n  'w'\n"


def test_a_sequence_is_traced_to_its_documents(store: Path):
    document = json_of("trace", store / "exports/parquet", "--sequence", "0")

    assert [origin["text"] for origin in document["origins"]] == ["one", "two "]


def test_a_token_that_stands_for_no_character_is_said_to_be_eos(store: Path):
    result = run("trace", store / "exports/bin", "--token", "3")

    assert result.stdout == "a.jsonl:0  no character, at 3  (1 token at 3)\n  EOS\n"

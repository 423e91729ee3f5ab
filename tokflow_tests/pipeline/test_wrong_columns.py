"""A column that is not there is told before anything is fetched, hashed or tokenized."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import yaml

from tokflow.errors import ConfigError
from tokflow.pipeline.plan import make_plan
from tokflow_tests.cli.commands import run
from tokflow_tests.tiny import TINY, build, declare

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

RECORD = {"body": "a", "messages": CHAT}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a.parquet": ({}, "column 'text', found the columns 'body', 'messages'; set documents.text"),
    "a.arrow": ({}, "column 'text', found the columns 'body', 'messages'; set documents.text"),
    "a.csv": ({}, "column 'text', found the columns 'body', 'messages'; set documents.text"),
    "a.jsonl": ({}, "in 'text', found the fields 'body', 'messages'; set documents.text"),
    "b.jsonl": ({"messages": "chat"}, "in 'chat', found the fields 'body', 'messages'; set"),
    "c.jsonl": ({"text": "messages"}, "found chats; write `documents: {messages: messages}` in"),
    "b.parquet": ({"text": "messages"}, "; write `documents: {messages: messages}` in place of"),
}
"""A file, `documents`, and what is said."""


def write(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    table = pa.Table.from_pylist([RECORD])
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path)
        case ".arrow":
            pyarrow.feather.write_feather(table, path)
        case ".csv":
            path.write_text("body,messages\na,b\n")
        case _:
            path.write_text(f"{json.dumps(RECORD)}\n")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_column_ends_plan_and_run_before_the_tokenizer_is_looked_for(
    name: str, tmp_path: Path
):
    documents, said = WRONG[name]
    write(tmp_path / "raw" / name)
    tokenizer = {"kind": "file", "name": "nowhere/tokenizer.json"}
    fields = {**TINY, "raw": {"files": "raw/*"}, "tokenizer": tokenizer, "documents": documents}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(fields))

    for command in ("plan", "run"):
        result = run(command, "--config", tmp_path / "tiny.yaml")

        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "store").exists()


def test_a_column_that_is_wrong_after_a_build_is_told_as_before_the_first(tmp_path: Path):
    build(declare(tmp_path, {"a.jsonl": ["ab"]}))

    with pytest.raises(ConfigError, match="in 'body', found the field"):
        make_plan(declare(tmp_path, documents={"text": "body"}))


def test_one_file_without_the_column_stops_no_other(tmp_path: Path):
    declare(tmp_path, {"b.jsonl": ["right"]})
    write(tmp_path / "raw/a.jsonl")

    plan = make_plan(declare(tmp_path))

    assert len(plan.graph.partitions) == 2


def test_a_field_that_comes_late_is_waited_for_where_bad_records_are_set_aside(tmp_path: Path):
    write(tmp_path / "raw/a.jsonl")

    assert make_plan(declare(tmp_path, documents={"on_bad_document": "reject"})).missing

"""Chats of every layout and file format as messages, tools and names for the template."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig
from tokflow.documents.batch import ParsedBatch
from tokflow.errors import BadDocumentError, ConfigError
from tokflow.tokenizers.chat import BadChatError, Chat, read_chat
from tokflow_tests.chats import chat
from tokflow_tests.reading import read_documents

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}},
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
ASKED = [
    {"role": "user", "content": "Rain?"}, {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "no"}, {"role": "assistant", "content": "No."},
]  # fmt: skip
ROWS = [
    {"messages": ASKED, "tools": [WEATHER], "kwargs": {"enable_thinking": False}},
    {"messages": chat("a\n👍🏽", "b"), "tools": None, "kwargs": None},
]
FIELDS = {"messages": "messages", "tools": "tools", "chat_template_kwargs_column": "kwargs"}


def read_chats(path: Path, **fields: Any) -> list[Chat]:
    """Return the chats of a raw file."""
    config = DocumentsConfig(**fields)
    chats: list[Chat] = []

    def read(found: ParsedBatch) -> ParsedBatch:
        chats.extend(read_chat(of.encode(), config) for of in found.batch.texts.to_pylist())
        return found

    list(read_documents(path, config, render=read))
    return chats


def chat_of(record: Mapping[str, Any], **fields: Any) -> Chat:
    """Return the chat of one record, as readers give it."""
    config = DocumentsConfig(**fields)
    columns = config.chat_columns.values()
    return read_chat(",".join(json.dumps(record.get(of)) for of in columns).encode(), config)


def as_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def as_json_texts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str | None]]:
    def text(value: Any) -> str | None:
        return value if isinstance(value, str | None) else json.dumps(value)

    return [{name: text(value) for name, value in row.items()} for row in rows]


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(as_json_texts(rows))


WRITERS: dict[str, Callable[[Sequence[Mapping[str, Any]], Path], object]] = {
    "a.jsonl": lambda rows, path: path.write_text(as_lines(rows)),
    "array.json": lambda rows, path: path.write_text(json.dumps(rows)),
    "texts.jsonl": lambda rows, path: path.write_text(as_lines(as_json_texts(rows))),
    "a.parquet": lambda rows, path: pq.write_table(pa.Table.from_pylist(rows), path),
    "texts.parquet": lambda rows, path: pq.write_table(
        pa.Table.from_pylist(as_json_texts(rows)), path
    ),
    "a.arrow": lambda rows, path: feather.write_feather(pa.Table.from_pylist(rows), path),
    "a.csv": write_csv,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_chats(name: str, tmp_path: Path):
    WRITERS[name](ROWS, tmp_path / name)

    called, plain = read_chats(tmp_path / name, **FIELDS)

    assert called == Chat(ROWS[0]["messages"], ROWS[0]["tools"], ROWS[0]["kwargs"])
    assert plain == Chat(ROWS[1]["messages"])


def test_records_of_json_lines_may_lack_what_they_do_not_need(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(as_lines([{"messages": chat("a")}, ROWS[0]]))

    assert [of.tools for of in read_chats(tmp_path / "a.jsonl", **FIELDS)] == [None, [WEATHER]]


@pytest.mark.parametrize("name", WRITERS)
def test_a_column_that_no_record_has_is_named(name: str, tmp_path: Path):
    WRITERS[name](ROWS * 5, tmp_path / name)

    with pytest.raises(ConfigError) as caught:
        read_chats(tmp_path / name, messages="messages", tools="functions")

    assert caught.value.where == str(tmp_path / name)
    assert "documents.tools" in caught.value.remedy


def test_null_fields_of_structs_are_left_out_and_those_of_json_texts_kept(tmp_path: Path):
    arguments = [{"city": "Köln"}, {"days": 3}, {"city": None}]
    rows = [
        {"messages": [{"role": "assistant", "tool_calls": [{"arguments": of}]}]} for of in arguments
    ]
    WRITERS["a.parquet"](rows, tmp_path / "a.parquet")
    WRITERS["texts.parquet"](rows, tmp_path / "texts.parquet")

    def arguments_in(name: str) -> list[Any]:
        chats = read_chats(tmp_path / name, messages="messages")
        return [of.messages[0]["tool_calls"][0]["arguments"] for of in chats]

    assert arguments_in("a.parquet") == [{"city": "Köln"}, {"days": 3}, {}]
    assert arguments_in("texts.parquet") == arguments


def test_the_kwargs_of_a_record_take_the_place_of_those_of_the_config():
    both = {"chat_template_kwargs": {"a": 1, "b": [2]}, "chat_template_kwargs_column": "kwargs"}
    record = {"messages": chat("a"), "kwargs": {"b": 3, "c": None}}

    found = chat_of(record, messages="messages", **both)

    assert found.template_kwargs == {"a": 1, "b": 3, "c": None}


BESIDE = {"messages": "messages"}
SHARED = {"messages": "messages", "chat_format": "sharegpt"}
ONE_CALL = "the JSON of one call or several"
PAIRS = "a list of pairs of texts in 'history', or null"
BAD: list[tuple[dict[str, str], dict[str, Any], str]] = [
    (BESIDE | {"tools": "x"}, {"x": {"name": "f"}}, "a list of tools"),
    (BESIDE | {"tools": "x"}, {"x": ["f"]}, "a list of tools"),
    (BESIDE | {"tools": "x"}, {"x": [1]}, "a list of tools"),
    (BESIDE | {"tools": "x"}, {"x": "{"}, "a list of tools"),
    (BESIDE | {"chat_template_kwargs_column": "x"}, {"x": [1]}, "an object without"),
    (BESIDE | {"chat_template_kwargs_column": "x"}, {"x": {"messages": []}}, "an object without"),
    (BESIDE | {"system": "x"}, {"x": {"content": "x"}}, "text as 'system'"),
    *(
        (SHARED, {"messages": [{"from": "human", "value": "a"}, message]}, expected)
        for message, expected in (
            ({"from": "narrator", "value": "x"}, "one of human, user, gpt, assistant, chatgpt, mo"),
            ({"from": ["gpt"], "value": "x"}, "one of human, user"),
            ({"role": "user", "content": "x"}, "an object with `from` and `value` as message 1"),
            ({"from": "function_call", "value": "weather()"}, ONE_CALL),
            ({"from": "function_call", "value": '{"name": "f"}'}, ONE_CALL),
            ({"from": "function_call", "value": []}, ONE_CALL),
        )
    ),
    ({"chat_format": "alpaca"}, {"output": None}, "text as 'output'"),
    ({"chat_format": "alpaca"}, {"instruction": ["a"]}, "text as 'instruction'"),
    ({"chat_format": "alpaca"}, {"input": 3}, "text as 'input'"),
    ({"chat_format": "alpaca"}, {"history": [["a"]]}, PAIRS),
    ({"chat_format": "alpaca"}, {"history": {"a": "b"}}, PAIRS),
]


@pytest.mark.parametrize(("fields", "changed", "expected"), BAD)
def test_a_record_of_another_layout_is_a_bad_chat(
    fields: dict[str, str], changed: dict[str, Any], expected: str
):
    record = {"messages": chat("a"), "instruction": "a", "output": "b"}

    with pytest.raises(BadChatError) as caught:
        chat_of({**record, **changed}, **fields)

    assert caught.value.problem.expected.startswith(expected)


def test_tools_may_be_json_texts_one_by_one():
    found = chat_of({"m": chat("a"), "t": [json.dumps(WEATHER)]}, messages="m", tools="t")

    assert found.tools == [WEATHER]


@pytest.mark.parametrize("text", ["be brief", "", None])
def test_what_the_system_says_comes_first_and_once(text: str | None):
    fields = {"messages": "messages", "system": "system"}
    expected = chat("a", "b", system=text)

    assert chat_of({"messages": chat("a", "b"), "system": text}, **fields).messages == expected
    if text:
        assert chat_of({"messages": expected, "system": text}, **fields).messages == expected
        with pytest.raises(BadChatError):
            chat_of({"messages": expected, "system": "be long"}, **fields)


# Each role of ShareGPT, with the message that it stands for.
SHAREGPT = {"system": "system"} | dict.fromkeys(("human", "user"), "user")
SHAREGPT |= dict.fromkeys(("gpt", "assistant", "chatgpt", "model"), "assistant")
SHAREGPT |= dict.fromkeys(("tool", "observation", "function_response"), "tool")


@pytest.mark.parametrize("role", SHAREGPT)
def test_each_role_of_sharegpt_is_one_of_messages(role: str):
    record = {"conversations": [{"from": role, "value": "x", "weight": 0, "text": None}]}

    found = chat_of(record, messages="conversations", chat_format="sharegpt")

    assert found == Chat([{"role": SHAREGPT[role], "content": "x", "weight": 0}])


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("num_calls", [0, 1, 2])
def test_a_function_call_of_sharegpt_is_one_message_with_its_calls(num_calls: int, as_text: bool):
    call = CALL["function"]
    value: Any = [call] * num_calls if num_calls else call
    said = {"from": "function_call", "value": json.dumps(value) if as_text else value}
    record = {"c": [said], "tools": json.dumps([WEATHER])}

    found = chat_of(record, messages="c", tools="tools", chat_format="sharegpt")

    expected = [{"role": "assistant", "tool_calls": [CALL] * max(1, num_calls)}]
    assert found == Chat(expected, [WEATHER])


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("has_more", [True, False])
def test_an_alpaca_record_is_a_chat_in_every_format(name: str, has_more: bool, tmp_path: Path):
    more = {"input": "big", "system": "be brief", "history": [["a", "b"], ["c", "d"]]}
    record: dict[str, Any] = {"instruction": "Say it", "output": "It", **(more if has_more else {})}
    WRITERS[name]([record], tmp_path / name)

    [found] = read_chats(tmp_path / name, chat_format="alpaca")

    expected = chat("a", "b", "c", "d", "Say it\n\nbig", "It", system="be brief")
    assert found == Chat(expected if has_more else chat("Say it", "It"))


def test_an_alpaca_file_without_the_columns_it_needs_is_refused(tmp_path: Path):
    WRITERS["a.parquet"]([{"instruction": "a", "response": "b"}], tmp_path / "a.parquet")

    with pytest.raises(ConfigError) as caught:
        read_chats(tmp_path / "a.parquet", chat_format="alpaca")

    assert caught.value.expected == "a column 'output'"


@pytest.mark.parametrize("name", WRITERS)
def test_a_prompt_and_a_completion_of_messages_are_joined(name: str, tmp_path: Path):
    prompt, completion = chat("a", "b", "c"), [{"role": "assistant", "content": "d"}]
    WRITERS[name]([{"prompt": prompt, "completion": completion}], tmp_path / name)
    fields = {"prompt": "prompt", "completion": "completion", "chat_format": "messages"}

    assert read_chats(tmp_path / name, **fields) == [
        Chat(chat("a", "b", "c", "d"), first_supervised=3)
    ]


def test_lists_of_messages_where_texts_are_declared_name_the_format(tmp_path: Path):
    WRITERS["a.jsonl"]([{"prompt": chat("a"), "completion": chat("b")}], tmp_path / "a.jsonl")

    with pytest.raises(BadDocumentError) as caught:
        read_chats(tmp_path / "a.jsonl", prompt="prompt", completion="completion")

    assert "chat_format: messages" in caught.value.remedy

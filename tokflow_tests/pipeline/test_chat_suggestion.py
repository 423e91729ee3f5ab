"""Chats, prompts with completions and preference pairs in the first records of a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.pipeline.chat_suggestion import chat_fields
from tokflow_tests.chats import chat

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

"""Chats: the layouts that raw files have them in, as the messages of a chat template."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tokflow.documents import DocumentsConfig
from tokflow.documents.batch import Problem, excerpt
from tokflow.documents.chat_config import RESERVED

Message: TypeAlias = dict[str, Any]
"""A message as templates get it: `role`, `content` and more."""

SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "function_call": "assistant",
}
"""The role of a message for templates, by its `from`."""


class BadChatError(Exception):
    """A chat that is no document."""

    def __init__(self, *problem: str) -> None:
        super().__init__(*problem)
        self.problem = Problem(*problem)


@dataclass(frozen=True, slots=True)
class Chat:
    """All that a template gets of one chat, as `apply_chat_template` passes it on."""

    messages: Sequence[Message]
    """One or more; none has a field that is null."""
    tools: Sequence[Mapping[str, Any]] | None = None
    """The definitions of its tools; None where it has no such list."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`chat_template_kwargs` of the config, and in their place the record's own of the same name.
    Names of special tokens among them take the place of the tokenizer's."""
    first_supervised: int = 0
    """Index of the message from which on turns of the assistant are supervised: with `prompt` and
    `completion`, the first of the completion."""


def read_chat(data: bytes, documents: DocumentsConfig) -> Chat:
    """Return the chat of a record: `data` is the JSON of each of `documents.chat_columns`, with
    commas between them, as readers give it.

    Raises: BadChatError.
    """
    try:
        values = json.loads(b"[%b]" % data)
    except (ValueError, RecursionError) as error:
        found = f"{excerpt(data)} ({error})"
        raise BadChatError("fields whose JSON can be decoded", found) from error
    record = dict(zip(documents.chat_columns, values, strict=True))
    if documents.chat_format == "alpaca":
        lists = [_of_alpaca(record)]
    else:
        read = _of_sharegpt if documents.chat_format == "sharegpt" else _message
        columns = [name for name in ("messages", "prompt", "completion") if name in record]
        lists = [_listed(record[name], read, documents.chat_columns[name]) for name in columns]
    if system := _text(record, "system", is_needed=False):
        own: Message = {"role": "system", "content": system}
        if lists[0][0]["role"] != "system":
            lists[0].insert(0, own)
        elif lists[0][0] != own:
            expected = "words of the system in the messages, or beside them"
            raise BadChatError(expected, f"{excerpt(lists[0][0])} and {excerpt(system)}")
    return Chat(
        messages=[message for each in lists for message in each],
        tools=_tools(record.get("tools")),
        template_kwargs={**documents.chat_template_kwargs, **_kwargs(record)},
        first_supervised=len(lists[0]) if len(lists) > 1 else 0,
    )


def _listed(value: Any, read: Callable[[Any, int], Message], column: str) -> list[Message]:
    found = _decoded(value, f"the JSON of a list of messages in {column!r}")
    if not isinstance(found, list) or not found:
        raise BadChatError(f"a list of one message or more in {column!r}", excerpt(value))
    return [read(each, index) for index, each in enumerate(found)]


def _message(value: Any, index: int) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise BadChatError(f"an object with a `role` as message {index}", excerpt(value))
    return {key: item for key, item in value.items() if item is not None}


def _of_sharegpt(value: Any, index: int) -> Message:
    if not isinstance(value, dict) or not {"from", "value"} <= value.keys():
        expected = f"an object with `from` and `value` as message {index}"
        raise BadChatError(expected, excerpt(value))
    role = SHAREGPT_ROLES.get(str(value["from"]))
    if role is None:
        expected = f"one of {', '.join(SHAREGPT_ROLES)} as `from` of message {index}"
        raise BadChatError(expected, excerpt(value["from"]))
    words = {"content": value["value"]}
    if value["from"] == "function_call":
        words = {"tool_calls": _calls(value["value"], index)}
    others = {key: item for key, item in value.items() if key not in ("from", "value")}
    return _message({**others, "role": role, **words}, index)


def _calls(value: Any, index: int) -> list[dict[str, Any]]:
    expected = f"the JSON of one call or several, each {{name, arguments}}, as message {index}"
    found = _decoded(value, expected)
    calls = found if isinstance(found, list) else [found]
    are_calls = (isinstance(of, dict) and {"name", "arguments"} <= of.keys() for of in calls)
    if not calls or not all(are_calls):
        raise BadChatError(expected, excerpt(value))
    return [{"type": "function", "function": call} for call in calls]


def _of_alpaca(record: Mapping[str, Any]) -> list[Message]:
    asked = (_text(record, "instruction"), _text(record, "input", is_needed=False))
    expected = "a list of pairs of texts in 'history', or null"
    history = _decoded(record["history"], expected) or []
    pairs = [*history] if isinstance(history, list) else [history]
    pairs.append(["\n\n".join(filter(None, asked)), _text(record, "output")])
    if not all(isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in pairs):
        raise BadChatError(expected, excerpt(record["history"]))
    return [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def _tools(value: Any) -> list[dict[str, Any]] | None:
    expected = "a list of tools, each an object, or null"
    found = _decoded(value, expected)
    tools = [_decoded(of, expected) for of in found] if isinstance(found, list) else found
    if tools is not None and (tools is found or not all(isinstance(of, dict) for of in tools)):
        raise BadChatError(expected, excerpt(value))
    return tools


def _kwargs(record: Mapping[str, Any]) -> dict[str, Any]:
    value = record.get("chat_template_kwargs_column")
    expected = f"an object without {', '.join(sorted(RESERVED))} as chat_template_kwargs, or null"
    found = _decoded(value, expected) or {}
    if not isinstance(found, dict) or RESERVED & found.keys():
        raise BadChatError(expected, excerpt(value))
    return found


def _text(record: Mapping[str, Any], name: str, *, is_needed: bool = True) -> str | None:
    value = record.get(name)
    if not isinstance(value, str) and (is_needed or value is not None):
        raise BadChatError(f"text as {name!r}", excerpt(value))
    return value


def _decoded(value: Any, expected: str) -> Any:
    """Return a value or, of a text, what its JSON holds; None where it is empty."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except (ValueError, RecursionError) as error:
        raise BadChatError(expected, f"{excerpt(value)} ({error})") from error

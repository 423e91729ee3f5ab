"""Random chats in every layout, and the text that the template of the cases makes of them."""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tokflow_tests.fuzz.texts import random_text

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }};{% endif %}{% for m in messages %}{{ m.role }}: "
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% for call in m.tool_calls %}"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}{{ mood }}"
)

ALPACA = ("instruction", "output", "input", "history", "system")
SHAREGPT = {
    "user": ("human", "user"),
    "assistant": ("gpt", "assistant", "chatgpt", "model"),
    "system": ("system",),
    "tool": ("tool", "observation", "function_response"),
}

CHAT_STARTS = ('[{"role":', '[{"from":')
"""Starts of the JSON texts of chats, which may be lists in a record as well."""

Message = dict[str, Any]
Record = dict[str, str | None]


class Written(str):
    """The text of a chat."""

    spans: Sequence[tuple[int, int]]
    """First and last but one character of what the assistant says each time."""


def add_chats(random: Random, config: dict[str, Any]) -> None:
    """Let the documents be chats; `columns` are then those of the files."""
    column = random.choice(("messages", "meta.body", "chat"))
    layout = random.choice(("messages", "sharegpt", "alpaca", "pair"))
    columns = [column]
    if layout == "alpaca":
        config["chat_format"] = layout
        columns = [*ALPACA[:2], *random.sample(ALPACA[2:], random.randrange(4))]
    elif layout == "pair":
        config |= {"prompt": "prompt", "completion": column}
        config["chat_format"] = random.choice(("messages", "sharegpt"))
        columns = ["prompt", column]
    else:
        config["messages"] = column
        config |= {"chat_format": layout} if layout == "sharegpt" or random.random() < 0.2 else {}
    if random.random() < 0.3:
        config["tools"] = "tools"
        columns.append("tools")
    if random.random() < 0.2:
        config["chat_template_kwargs_column"] = "kwargs"
        columns.append("kwargs")
    if random.random() < 0.3:
        config["chat_template_kwargs"] = {"mood": random.choice(("calm", 5, None, ["x"]))}
    config |= {"columns": tuple(columns), "chat_template": TEMPLATE, "on_no_loss": "accept"}
    config.pop("text", None)


def is_chat(config: Mapping[str, Any]) -> bool:
    """Say whether documents are chats."""
    return "chat_template" in config


def may_be_bad(config: Mapping[str, Any]) -> bool:
    """Say whether a record is bad that has no text in any one of its columns."""
    return not {"tools", "chat_template_kwargs_column"} & {*config} and (
        config.get("chat_format") != "alpaca"
    )


def random_record(random: Random, config: Mapping[str, Any]) -> Record:
    """Return a record whose chat is in JSON texts, and in texts alone with alpaca."""
    made: Record = {}
    for column in config["columns"]:
        if column == "tools":
            tools = [{"name": "f", "description": random_text(random)}]
            made[column] = random.choice((None, "", "[]", json.dumps(tools)))
        elif column == "kwargs":
            made[column] = random.choice((None, "{}", json.dumps({"mood": random_text(random)})))
        elif column == "history":
            pairs = [[random_text(random), random_text(random)] for _ in range(random.randrange(3))]
            made[column] = random.choice((None, json.dumps(pairs)))
        elif config.get("chat_format") == "alpaca":
            made[column] = random_text(random)
        else:
            messages = [_message(random) for _ in range(random.choice((1, 2, 2, 4, 7)))]
            is_sharegpt = config.get("chat_format") == "sharegpt"
            listed = [_as_sharegpt(random, of) for of in messages] if is_sharegpt else messages
            made[column] = json.dumps(listed, ensure_ascii=random.random() < 0.5)
    return made


def _message(random: Random) -> Message:
    role = random.choice(("user", "assistant", "tool", "call", "system"))
    more = {"name": None, "weight": 0} if random.random() < 0.2 else {}
    if role != "call":
        return {"role": role, "content": random_text(random), **more}
    calls = [{"name": "f", "arguments": {"x": random_text(random), "y": None}}]
    calls *= random.choice((1, 2))
    return {"role": "assistant", "tool_calls": [{"function": call} for call in calls], **more}


def _as_sharegpt(random: Random, message: Message) -> Message:
    more = {key: message[key] for key in ("name", "weight") if key in message}
    if "tool_calls" in message:
        calls = [of["function"] for of in message["tool_calls"]]
        value: Any = calls[0] if len(calls) == 1 else calls
        return {"from": "function_call", "value": random.choice((value, json.dumps(value))), **more}
    return {"from": random.choice(SHAREGPT[message["role"]]), "value": message["content"], **more}


def written(record: Mapping[str, str | None] | None, config: Mapping[str, Any]) -> Written | None:
    """Return the text of a record's chat; None where there is none."""
    messages = None if record is None else _messages_of(record, config)
    if messages is None or record is None:
        return None
    tools = json.loads(record.get("tools") or "null")
    kwargs = config.get("chat_template_kwargs", {})
    kwargs = {**kwargs, **json.loads(record.get("kwargs") or "{}")}
    text = f"{json.dumps(tools, ensure_ascii=False)};" if tools else ""
    first = len(json.loads(str(record["prompt"]))) if "prompt" in config else 0
    spans = []
    for index, message in enumerate(messages):
        text += f"{message['role']}: "
        start = len(text)
        text += message.get("content", "")
        for call in (of["function"] for of in message.get("tool_calls", ())):
            text += call["name"] + json.dumps(call["arguments"], ensure_ascii=False)
        is_said = message["role"] == "assistant" and message.get("weight") != 0
        spans += [(start, len(text))] if is_said and index >= first else []
        text += ";"
    made = Written(text + (str(kwargs["mood"]) if "mood" in kwargs else ""))
    made.spans = spans
    return made


def _messages_of(
    record: Mapping[str, str | None], config: Mapping[str, Any]
) -> list[Message] | None:
    if config.get("chat_format") == "alpaca":
        asked = [record["instruction"], record.get("input")]
        pairs = json.loads(record.get("history") or "[]")
        pairs.append(["\n\n".join(filter(None, asked)), record["output"]])
        turns = [turn for pair in pairs for turn in zip(("user", "assistant"), pair, strict=True)]
        turns = [("system", of) for of in [record.get("system")] if of] + turns
        return [{"role": role, "content": text} for role, text in turns]
    names = [of for name in ("messages", "prompt", "completion") if (of := config.get(name))]
    lists = [record[name] for name in names]
    if None in lists:
        return None
    return [_as_message(of) for text in lists for of in json.loads(str(text))]


def _as_message(message: Message) -> Message:
    if "from" not in message:
        return message
    more = {"weight": message.get("weight")}
    if message["from"] == "function_call":
        value = message["value"]
        calls = json.loads(value) if isinstance(value, str) else value
        calls = calls if isinstance(calls, list) else [calls]
        return {"role": "assistant", "tool_calls": [{"function": call} for call in calls], **more}
    [role] = [role for role, names in SHAREGPT.items() if message["from"] in names]
    return {"role": role, "content": message["value"], **more}


def mask_of(text: str, tokens: Sequence[int]) -> list[int]:
    """Return which tokens of a text are supervised: bytes, with BOS 257 and EOS 256."""
    if not isinstance(text, Written):
        return [1] * len(tokens)
    of_bytes = [
        any(start <= n < stop for start, stop in text.spans)
        for n, char in enumerate(text)
        for _ in char.encode()
    ]
    is_to_the_end = bool(text.spans) and text.spans[-1][1] >= len(text.rstrip())
    mask = [is_to_the_end if token == 256 else False for token in tokens if token > 255]
    if tokens and tokens[0] == 257:
        return list(map(int, [False, *of_bytes, *mask[1:]]))
    return list(map(int, [*of_bytes, *mask]))

"""Recognition of chats, and of prompts with completions, in the first records of a raw file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError

Layout: TypeAlias = Literal["messages", "sharegpt", "text"]

USUAL_CHATS = ("messages", "conversations", "conversation", "chat")
"""Usual names of the column of chats, the likeliest first."""
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "response"),
    ("question", "answer"),
)
"""Names of columns with a prompt and its completion."""
PREFERENCE = ("chosen", "rejected")
"""Columns of two answers to one prompt."""
_KEYS: dict[Layout, set[str]] = {"messages": {"role"}, "sharegpt": {"from", "value"}}


def chat_fields(records: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Any] | None:
    """Return the `documents` fields of records that are chats, or prompts with completions; None
    of other records.

    Raises: ConfigError for pairs of a chosen and a rejected answer.
    """
    layouts: dict[str, Layout] = {}
    for name in dict.fromkeys(name for record in records for name in record):
        kinds = {_layout(value) for record in records if (value := record[name]) is not None}
        if len(kinds) == 1 and (layout := kinds.pop()) is not None:  # all alike, null aside
            layouts[name] = layout
    if layouts.keys() >= {*PREFERENCE}:
        chosen = f"messages: {PREFERENCE[0]}"
        if layouts[PREFERENCE[0]] == "text":
            chosen = f"prompt: prompt, completion: {PREFERENCE[0]}"
        raise ConfigError(
            where=path,
            expected="texts, chats, or prompts with one completion each",
            found="preference pairs, in 'chosen' and 'rejected', which no export holds",
            remedy=f"write `documents: {{{chosen}}}` in a YAML of yours to train on the chosen "
            "answers alone, give the file itself to a trainer of preferences (DPO), or name a "
            "column of text by --text",
        )
    found = _named(layouts)
    if found is None or not DocumentsConfig(**found).is_rendered:
        return found
    if layouts.get("system") == "text" and "system" not in DocumentsConfig(**found).columns:
        found["system"] = "system"
    values = {name: [of for record in records if (of := record.get(name))] for name in _BESIDE}
    beside = {field: name for name, field in _BESIDE.items() if values[name]}
    return {**found, **beside}


_BESIDE = {"tools": "tools", "chat_template_kwargs": "chat_template_kwargs_column"}
"""Columns beside a chat, and the fields that name them."""


def _layout(value: Any) -> Layout | None:
    messages = value
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            messages = json.loads(value)
        except (ValueError, RecursionError):
            return "text"
    if isinstance(messages, list) and messages and all(isinstance(of, dict) for of in messages):
        for layout, keys in _KEYS.items():
            if all(keys <= of.keys() for of in messages):
                return layout
    return "text" if isinstance(value, str) else None


def _named(layouts: Mapping[str, Layout]) -> dict[str, Any] | None:
    """Return the fields that name the columns of a chat, or of a prompt and its completion."""
    prompt = layouts.get("prompt")
    if prompt in _KEYS and layouts.get("completion") == prompt:
        return {"prompt": "prompt", "completion": "completion", "chat_format": prompt}
    chats = [name for name, layout in layouts.items() if layout in _KEYS]
    if chats:
        name = next((name for name in USUAL_CHATS if name in chats), chats[0])
        of_format = {"chat_format": "sharegpt"} if layouts[name] == "sharegpt" else {}
        return {"messages": name, **of_format}
    texts = {name for name, layout in layouts.items() if layout == "text"}
    if texts >= {"instruction", "output"}:
        return {"chat_format": "alpaca"}
    pairs = (pair for pair in PAIRS if texts.issuperset(pair))
    return next(({"prompt": first, "completion": last} for first, last in pairs), None)

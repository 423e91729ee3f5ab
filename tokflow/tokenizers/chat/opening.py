"""A dataset's chat template, and the tokens of its tokenizer that mean something in chats."""

import json
import re
from datetime import date
from pathlib import Path

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError
from tokflow.tokenizers.chat.marks import tags_of
from tokflow.tokenizers.chat.template import ChatTemplate
from tokflow.tokenizers.tokenizer import GENERATION_NAME, Tokenizer
from tokflow.tokenizers.vocabulary import added_tokens, control_tokens, names_of_roles, read_config

TEMPLATE_NAME = "chat_template.jinja"

ROLES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""Names that templates have for special tokens, as transformers passes them."""

CHANGING = re.compile(r"\bstrftime_now\s*\(|\|\s*random\b|\blipsum\s*\(")
"""Calls that give another text each time; the same raw file must always give the same tokens."""

CLOCK = re.compile(
    r"""\bstrftime_now\s*\(\s*(?P<quote>["'])(?P<format>[^"'\n\\]*)(?P=quote)\s*\)"""
)
"""Calls that ask for the time in a format that stands there."""

_SIGNED = re.compile(r"[^\w\s].+[^\w\s]")
"""Names of tokens that are no words, as DeepSeek's <|User|> in wide letters."""

_USER, _ASSISTANT = ({"role": role, "content": "x"} for role in ("user", "assistant"))


def open_template(documents: DocumentsConfig, tokenizer: Tokenizer | None) -> ChatTemplate:
    """Return the template that writes the chats of a dataset.

    Without `tokenizer`, which may not exist yet, the template is the one of `documents`, and no
    special token has a name for it.

    Raises: ConfigError where there is no template, or one that gives another text each time;
    CorruptOutputError where a file of the tokenizer is damaged.
    """
    template, names = documents.chat_template, {}
    if tokenizer is not None:
        tokenizer.ask_for_files()
        template = template or _template_in(tokenizer.folder)
        names = _names(tokenizer)
    if template is None:
        raise ConfigError(
            where="documents.chat_template",
            expected="a chat template, for documents are chats",
            found=f"none, and the tokenizer brings no {TEMPLATE_NAME} and none in its "
            "tokenizer_config.json",
            remedy="set documents.chat_template to Jinja text or to the path of a .jinja file",
        )
    if documents.chat_date is not None:
        template = with_date(template, date.fromisoformat(documents.chat_date))
    if changing := CHANGING.search(template):
        remedy = "copy the template into a .jinja file, put a fixed text in its place, and set "
        remedy += "documents.chat_template to the file"
        if CLOCK.search(template):
            remedy = "set documents.chat_date to the day that it is to write, as 2026-01-31"
        raise ConfigError(
            where="documents.chat_template",
            expected="a template that gives the same text each time",
            found=repr(changing.group()),
            remedy=remedy,
        )
    return ChatTemplate(template, names, kwargs=documents.chat_template_kwargs)


def with_date(template: str, day: date) -> str:
    """Return a template that writes a day wherever it asks for the time in a format."""
    return CLOCK.sub(lambda call: json.dumps(day.strftime(call["format"])), template)


def _template_in(folder: Path) -> str | None:
    """Return the chat template that a tokenizer brings along."""
    if (path := folder / TEMPLATE_NAME).is_file():
        return path.read_text(encoding="utf-8")
    found = read_config(folder).get("chat_template")
    if isinstance(found, list):  # of named templates
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found if isinstance(found, str) else None


def _names(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens by the names that templates have for them."""
    if tokenizer.kind == "bytes":  # whose special tokens no text can spell
        return {}
    ends = {"eos_token": tokenizer.eos_token, "bos_token": tokenizer.bos_token}
    named = {role: token for role, token in ends.items() if token is not None}
    return {**names_of_roles(tokenizer.folder, ROLES), **named}


def stop_tokens(documents: DocumentsConfig, tokenizer: Tokenizer | None) -> list[str]:
    """Return the tokens that end a turn where the template does not end it: those of the config
    or, by default, of the generation_config.json that the tokenizer came with."""
    if documents.stop_tokens or tokenizer is None:
        return list(documents.stop_tokens)
    found = read_config(tokenizer.folder, GENERATION_NAME).get("eos_token_id")
    if found is None:  # so that a recipe reads no tokenizer.json in vain
        return []
    ids = found if isinstance(found, list) else [found]
    names = {
        id_: name
        for name, id_ in [*added_tokens(tokenizer).items(), *control_tokens(tokenizer).items()]
    }
    return [names[id_] for id_ in ids if id_ in names]


def tokens_of_chats(template: ChatTemplate, tokenizer: Tokenizer | None) -> dict[str, int]:
    """Return name to id of the tokens that are a template's where it writes them, and plain text
    where messages spell them.

    Beside the control tokens they are those special by use: added to the vocabulary, not flagged
    as special, and written by the template around the words of each chat, as roles are.
    """
    if tokenizer is None:
        return {}
    control = control_tokens(tokenizer)
    not_own = {*control, *tags_of(template.source)}  # tags, such as <think>, are messages' own
    added = added_tokens(tokenizer).items()
    by_use = {name: id_ for name, id_ in added if _SIGNED.fullmatch(name) and name not in not_own}
    if by_use:
        messages = [_USER, _ASSISTANT, _USER]
        around = template.try_writing(messages, add_generation_prompt=True) or ""
        by_use = {name: id_ for name, id_ in by_use.items() if name in around}
    return {**by_use, **control}

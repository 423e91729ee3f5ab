"""Chats -> text: a chat template writes the messages, and which characters are supervised."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tokflow.documents import Batch, DocumentsConfig, Render, Spans
from tokflow.documents.batch import BadDocument, ParsedBatch
from tokflow.errors import ConfigError
from tokflow.store.tables import to_texts
from tokflow.tokenizers.chat.formats import BadChatError, Chat, read_chat
from tokflow.tokenizers.chat_template import CharSpan, ChatSpelling, ChatTemplate
from tokflow.tokenizers.engines.protocol import text_buffers
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokenizers.vocabulary import control_tokens, names_of_roles, read_config

TEMPLATE_NAME = "chat_template.jinja"

ROLES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""Names that templates have for special tokens, as transformers passes them."""

CHANGING = re.compile(r"\bstrftime_now\s*\(|\|\s*random\b|\blipsum\s*\(")
"""Calls that give another text each time; the same raw file must always give the same tokens."""

MAX_TURNS = 500
"""Of the assistant, where each is found by rendering all before it twice: the time grows with the
square of the turns, and would take minutes at some thousands."""

GENERATION_REMEDY = (
    "put what the assistant says between {% generation %} and {% endgeneration %} in the template "
    "(documents.chat_template)"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as text; the spans are (start, stop) in code points."""

    text: str
    loss_spans: list[CharSpan]
    """The assistant's words, with what the template ends them with."""
    spelt: list[CharSpan]
    """Special tokens that the messages, and not the template, spell."""


def open_renderer(documents: DocumentsConfig, tokenizer: Tokenizer | None) -> Render | None:
    """Return what makes documents of messages; None where the documents are no messages.

    Without `tokenizer`, which may not exist yet, the template is the one of `documents`, and no
    special token has a name for it.

    Raises: ConfigError where there is no template, or one that gives another text each time;
    CorruptOutputError where a file of the tokenizer is damaged.
    """
    if not documents.is_rendered:
        return None
    template = documents.chat_template
    names: dict[str, str] = {}
    special_tokens: Iterable[str] = ()
    if tokenizer is not None:
        tokenizer.ask_for_files()
        template = template or _template_in(tokenizer.folder)
        names = _names(tokenizer)
        special_tokens = control_tokens(tokenizer)
    if template is None:
        raise ConfigError(
            where="documents.chat_template",
            expected="a chat template, for documents are chats",
            found=f"none, and the tokenizer brings no {TEMPLATE_NAME} and none in its "
            "tokenizer_config.json",
            remedy="set documents.chat_template to Jinja text or to the path of a .jinja file",
        )
    if changing := CHANGING.search(template):
        raise ConfigError(
            where="documents.chat_template",
            expected="a template that gives the same text each time",
            found=repr(changing.group()),
            remedy="copy the template into a .jinja file, put a fixed text in its place, and "
            "set documents.chat_template to the file",
        )
    return Renderer(template, documents, names=names, special_tokens=special_tokens)


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


class Renderer:
    """A chat template with what it says, or does not say, of what is supervised.

    A template with `{% generation %}` blocks says by them what is supervised. Without, the text of
    messages[:i] with the generation prompt must be how the text of messages[:i + 1] begins, and
    that how the whole begins: the assistant's message i is what follows the former in the latter.

    Source: transformers 5.23 `apply_chat_template`.
    """

    def __init__(
        self,
        template: str,
        documents: DocumentsConfig,
        *,
        names: Mapping[str, str],
        special_tokens: Iterable[str],
    ) -> None:
        self._documents = documents
        self._template = ChatTemplate(template, names)
        self._spelling = ChatSpelling(self._template, special_tokens)

    def __call__(self, found: ParsedBatch) -> ParsedBatch:
        """Return the documents that the template makes of the chats that were found."""
        rendered: list[Rendered] = []
        kept: list[int] = []
        bad = list(found.bad)
        offsets, data = text_buffers(found.batch.texts)
        for index, row in enumerate(found.batch.rows.tolist()):
            try:
                record = data[offsets[index] : offsets[index + 1]].tobytes()
                rendered.append(self.render(read_chat(record, self._documents)))
            except BadChatError as error:
                bad.append(BadDocument(row, found.place(row), error.problem))
            else:
                kept.append(index)
        batch = Batch(
            found.batch.rows[kept],
            to_texts([chat.text for chat in rendered]),
            np.array([len(chat.text) for chat in rendered], dtype=np.int64),
            Spans.of([chat.loss_spans for chat in rendered]),
            Spans.of([chat.spelt for chat in rendered]),
        )
        return ParsedBatch(batch, tuple(sorted(bad, key=lambda document: document.row)))

    def render(self, chat: Chat) -> Rendered:
        """Return one chat as text."""
        text = self._template.write(chat)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = repr(error.object[error.start])
            raise BadChatError("text", f"the lone surrogate {surrogate} in a message") from error
        if self._template.has_generation:
            loss_spans = self._template.generated(chat, text)
        else:
            loss_spans = self._turns(chat, text)
        return Rendered(text, loss_spans, self._spelling.find(chat, text))

    def _turns(self, chat: Chat, text: str) -> list[CharSpan]:
        """Return what the assistant says, found by rendering up to before and after it."""
        messages = chat.messages
        num_turns = sum(message["role"] == "assistant" for message in messages)
        if num_turns > MAX_TURNS:
            raise BadChatError(
                f"at most {MAX_TURNS:,} turns of the assistant, which a template without "
                "generation blocks is rendered twice for",
                f"{num_turns:,}",
                GENERATION_REMEDY,
            )
        spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant" or index < chat.first_supervised:
                continue
            try:
                shorter = replace(chat, messages=messages[:index])
                before = self._template.write(shorter, add_generation_prompt=True)
                after = text
                if index + 1 < len(messages):
                    after = self._template.write(replace(chat, messages=messages[: index + 1]))
            except BadChatError as error:
                found = f"it takes no shorter chat: {error.problem.found}"
                raise _no_turn(index, found) from error
            if not after.startswith(before):
                raise _no_turn(index, "the text before it differs from the prompt for it")
            if not text.startswith(after):
                raise _no_turn(index, "its text changes with what follows")
            spans.append((len(before), len(after)))
        return spans


def _no_turn(index: int, found: str) -> BadChatError:
    return BadChatError(
        f"a chat template by which message {index}, the assistant's, can be found in the text",
        found,
        GENERATION_REMEDY,
    )

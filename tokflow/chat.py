"""Chats -> text: a chat template writes the messages, and with it which characters are learnt."""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tokflow.arrays import to_texts
from tokflow.documents import Batch, DocumentsConfig, Render, Spans
from tokflow.documents.contract import BadDocument, Found, shortened
from tokflow.engines.protocol import text_buffers
from tokflow.engines.transformers_ import without_advice
from tokflow.errors import ConfigError, four_parts
from tokflow.tokenizer import Tokenizer

TEMPLATE_NAME = "chat_template.jinja"
CONFIG_NAMES = ("special_tokens_map.json", "tokenizer_config.json")

ROLES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""What a template may call special tokens, as transformers passes them."""

GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
"""The block in which a template writes what the model is to say."""

CHANGING = re.compile(r"\bstrftime_now\s*\(|\|\s*random\b|\blipsum\s*\(")
"""What gives another text each time; the same raw file must always give the same tokens."""

_RENDERING = threading.Lock()
"""A compiled template, which transformers keeps for all, notes its blocks in itself."""

Message = dict[str, Any]
CharSpan = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as text; the spans are (start, stop) in code points."""

    text: str
    loss_spans: list[CharSpan]
    """What the assistant says, with what the template ends it with."""
    spelt: list[CharSpan]
    """Where the messages, and not the template, spell special tokens."""


class _BadChatError(Exception):
    """A chat that is no document."""

    def __init__(self, expected: str, found: str, remedy: str | None = None) -> None:
        super().__init__(expected, found)
        self.expected, self.found, self.remedy = expected, found, remedy


def open_renderer(documents: DocumentsConfig, tokenizer: Tokenizer | None) -> Render | None:
    """Return what makes documents of messages; None where the documents are no messages.

    Without `tokenizer`, which may not exist yet, the template is the one of `documents`, and no
    special token has a name for it.

    Raises: ConfigError where there is no template, or one that gives another text each time.
    """
    if documents.messages is None:
        return None
    template = documents.chat_template
    names: dict[str, str] = {}
    special_tokens: set[str] = set()
    if tokenizer is not None:
        template = template or _template_in(tokenizer.folder)
        names = _names(tokenizer)
        special_tokens = {*tokenizer.special_tokens, *(names.get(role, "") for role in ROLES[:2])}
    if template is None:
        raise ConfigError(
            four_parts(
                where="documents.chat_template",
                expected="a chat template, for documents.messages is given",
                found=f"none, and the tokenizer brings no {TEMPLATE_NAME} and none in its "
                "tokenizer_config.json",
                remedy="set documents.chat_template to Jinja text or to the path of a .jinja file",
            )
        )
    if changing := CHANGING.search(template):
        raise ConfigError(
            four_parts(
                where="documents.chat_template",
                expected="a template that gives the same text each time",
                found=repr(changing.group()),
                remedy="copy the template into a .jinja file, put a fixed text in its place, and "
                "set documents.chat_template to the file",
            )
        )
    return Renderer(template, names=names, special_tokens=special_tokens - {""})


def _template_in(folder: Path) -> str | None:
    """Return the chat template that a tokenizer brings along."""
    if (path := folder / TEMPLATE_NAME).is_file():
        return path.read_text(encoding="utf-8")
    found = _fields(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # of named templates
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found if isinstance(found, str) else None


def _names(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens by the names that templates have for them."""
    if tokenizer.kind == "bytes":  # whose special tokens no text can spell
        return {}
    names: dict[str, str] = {}
    for name in CONFIG_NAMES:
        fields = _fields(tokenizer.folder / name)
        for role in ROLES:
            token = fields.get(role)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                names[role] = token
    if tokenizer.eos_token is not None:
        names["eos_token"] = tokenizer.eos_token
    if tokenizer.bos_token is not None:
        names["bos_token"] = tokenizer.bos_token
    return names


def _fields(path: Path) -> dict[str, Any]:
    fields = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return fields if isinstance(fields, dict) else {}


class Renderer:
    """A chat template, applied as transformers does.

    A template with `{% generation %}` blocks says by them what is learnt. Without, the text of
    messages[:i] with the generation prompt must be how the text of messages[:i + 1] begins, and
    that how the whole begins: the assistant's message i is what follows the former in the latter.

    Source: transformers 5.23 `apply_chat_template` and `render_jinja_template`.
    """

    def __init__(
        self, template: str, *, names: Mapping[str, str], special_tokens: set[str]
    ) -> None:
        with without_advice():
            from transformers.utils.chat_template_utils import render_jinja_template
        self._render: Any = render_jinja_template
        self._template = template
        self._names = dict(names)
        self._has_generation = GENERATION.search(template) is not None
        spellings = sorted(special_tokens, key=lambda name: (-len(name), name))
        self._spellings = "|".join(map(re.escape, spellings))
        self._spelling = re.compile(self._spellings or r"(?!)")

    def __call__(self, found: Found) -> Found:
        """Return the documents that the template makes of the messages that were found."""
        rendered: list[Rendered] = []
        kept: list[int] = []
        bad = list(found.bad)
        offsets, data = text_buffers(found.batch.texts)
        for index, row in enumerate(found.batch.rows.tolist()):
            try:
                messages = _messages(data[offsets[index] : offsets[index + 1]].tobytes())
                rendered.append(self.render(messages))
            except _BadChatError as problem:
                line, byte_offset = found.place(index)
                bad.append(
                    BadDocument(
                        row=row,
                        line=line,
                        byte_offset=byte_offset,
                        expected=problem.expected,
                        found=problem.found,
                        remedy=problem.remedy,
                    )
                )
            else:
                kept.append(index)
        batch = Batch(
            found.batch.rows[kept],
            to_texts([chat.text for chat in rendered]),
            np.array([len(chat.text) for chat in rendered], dtype=np.int64),
            Spans.of([chat.loss_spans for chat in rendered]),
            Spans.of([chat.spelt for chat in rendered]),
        )
        bad.sort(key=lambda document: document.row)
        return Found(batch, tuple(bad), lambda index: found.place(kept[index]))

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Return one chat as text."""
        text, loss_spans = self._write(messages)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = repr(error.object[error.start])
            raise _BadChatError("text", f"the lone surrogate {surrogate} in a message") from error
        if not self._has_generation:
            loss_spans = self._turns(messages, text)
        return Rendered(text, loss_spans, self._spelt(messages, text))

    def _write(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False
    ) -> tuple[str, list[CharSpan]]:
        """Return the text of messages, and the spans of the template's generation blocks."""
        import jinja2

        try:
            with _RENDERING:
                [text], spans = self._render(
                    [list(messages)],
                    chat_template=self._template,
                    return_assistant_tokens_mask=self._has_generation,
                    add_generation_prompt=add_generation_prompt,
                    **self._names,
                )
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                four_parts(
                    where=f"documents.chat_template: line {error.lineno}",
                    expected="a Jinja template",
                    found=f"{error.message}",
                    remedy="correct the template",
                )
            ) from error
        except ImportError:
            raise
        except Exception as error:  # whatever a template does with what it did not expect
            found = f"{type(error).__name__}: {str(error).strip()[:200]}"
            raise _BadChatError("messages that the chat template takes", found) from error
        return text, sorted(spans[0]) if spans else []

    def _turns(self, messages: Sequence[Message], text: str) -> list[CharSpan]:
        """Return what the assistant says, found by rendering up to before and after it."""
        spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            try:
                before, _ = self._write(messages[:index], add_generation_prompt=True)
                after = text
                if index + 1 < len(messages):
                    after, _ = self._write(messages[: index + 1])
            except _BadChatError as problem:
                raise _no_turn(index, f"it takes no shorter chat: {problem.found}") from problem
            if not after.startswith(before):
                raise _no_turn(index, "what is before it is not how it begins as a prompt")
            if not text.startswith(after):
                raise _no_turn(index, "what follows it changes how it is written")
            spans.append((len(before), len(after)))
        return spans

    def _spelt(self, messages: Sequence[Message], text: str) -> list[CharSpan]:
        """Return where the text holds special tokens that the messages spell.

        They are put between two characters that neither the messages nor the template have, and
        looked for in what the template makes of that.
        """
        strings = "\0".join(_strings(messages))
        if not self._spelling.search(strings):
            return []
        used = {*strings, *self._template}
        private = map(chr, range(0xF0000, 0xFFFFE))
        opening, closing = islice((mark for mark in private if mark not in used), 2)
        marked = _replaced(messages, self._spellings, rf"{opening}\g<0>{closing}")
        written, _ = self._write(marked)
        spans, parts, end, length = [], [], 0, 0
        pattern = rf"{opening}({self._spellings}){closing}|[{opening}{closing}]"
        for match in re.finditer(pattern, written):
            parts += [written[end : match.start()], match.group(1) or ""]
            length += match.start() - end
            if match.group(1):
                spans.append((length, length + len(match.group(1))))
                length = spans[-1][1]
            end = match.end()
        if "".join((*parts, written[end:])) != text:
            raise _BadChatError(
                "a chat template that copies what the messages say",
                "another text where special tokens that they spell are marked",
                "take the special tokens out of the messages",
            )
        return spans


def _messages(data: bytes) -> list[Message]:
    """Return the messages of a chat, without fields that are null, as transformers drops them."""
    try:
        value = json.loads(data.decode())
        if isinstance(value, str):  # a JSON text that holds one
            value = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _BadChatError(
            "the JSON of a list of messages", f"{shortened(data)} ({error})"
        ) from error
    if not isinstance(value, list) or not value:
        raise _BadChatError("a list of one message or more", shortened(value))
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _BadChatError(f"an object with a `role` as message {index}", shortened(message))
    return [{key: item for key, item in message.items() if item is not None} for message in value]


def _no_turn(index: int, found: str) -> _BadChatError:
    return _BadChatError(
        f"a chat template by which message {index}, the assistant's, can be found in the text",
        found,
        "put what the assistant says between {% generation %} and {% endgeneration %} in the "
        "template (documents.chat_template)",
    )


def _strings(value: object) -> Iterator[str]:
    """Yield every string that messages hold, names of fields too: a template may write any."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)


def _replaced(value: Any, pattern: str, by: str) -> Any:
    """Return messages in which each string has a pattern replaced."""
    if isinstance(value, str):
        return re.sub(pattern, by, value)
    if isinstance(value, Mapping):
        return {
            _replaced(key, pattern, by): _replaced(item, pattern, by) for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_replaced(item, pattern, by) for item in value]
    return value

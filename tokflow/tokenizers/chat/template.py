"""A chat template, applied as transformers does, with or without marks for generation blocks."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError
from tokflow.tokenizers.chat import BadChatError, Chat, Message
from tokflow.tokenizers.engines.hugging_face import without_advice
from tokflow.tokenizers.tokenizer import GENERATION_NAME, Tokenizer
from tokflow.tokenizers.vocabulary import added_tokens, control_tokens, names_of_roles, read_config

THINK, END_THINK = "<think>", "</think>"
"""Tags around reasoning that stands inside the content of the assistant."""

_PIECES = re.compile(
    r"\{#.*?#\}|\{\{.*?\}\}|\{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}|"
    r"(?P<before>\{%[-+]?\s*)(?P<end>end)?generation(?P<after>\s*[-+]?%\})|\{%.*?%\}",
    re.DOTALL,
)
"""Comments, expressions, raw blocks and statements of a template; with an `after` those that begin
and end the block in which it writes what the model is to say."""
_LITERAL = re.compile(r"""'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)\"""")
_TAG = re.compile(r"<[^<>|\uff5c]+>|\[/?[A-Z]+\]")  # without the bars of control tokens

_MEDIA = re.compile("image|audio|video|file")
PROBE = "qzqz"
"""A word that no template writes by itself."""
_FIELDS = {"x": {"type": "string", "description": "x"}}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "f",
            "parameters": {"type": "object", "properties": _FIELDS, "required": ["x"]},
        },
    }
]


class ChatTemplate:
    """A chat template, applied as transformers does.

    Source: transformers 5.23 `render_jinja_template`.
    """

    def __init__(
        self, template: str, names: Mapping[str, str], *, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Take a template, the special tokens by the names it has for them, and what else all
        chats give it.

        Raises: ConfigError where it is no Jinja.
        """
        without_advice()
        from transformers.utils.chat_template_utils import render_jinja_template

        self._render: Any = render_jinja_template
        self.source = template
        self._names: dict[str, Any] = dict(names)
        self._kwargs = dict(kwargs or {})
        self.has_generation = any(of["after"] for of in _PIECES.finditer(template))
        """True if the template marks the supervised text."""
        literals = (single or double for single, double in _LITERAL.findall(template))
        stripped = (literal.replace("\\n", "\n").strip() for literal in literals)
        self.tags = {THINK, END_THINK, *filter(_TAG.fullmatch, stripped)}
        """The tags in its string literals, which it may look for in messages."""

    def write(
        self,
        chat: Chat,
        *,
        add_generation_prompt: bool = False,
        block_marks: tuple[str, str] | None = None,
    ) -> str:
        """Return the text of a chat. `block_marks`: characters to put around generation blocks.

        Raises: ConfigError, BadChatError where the template does not take it.
        """
        import jinja2

        template = _with_marks(self.source, *block_marks) if block_marks else self.source
        try:
            [text], _ = self._render(
                [list(chat.messages)],
                tools=chat.tools,
                chat_template=template,
                add_generation_prompt=add_generation_prompt,
                **{**self._names, **chat.template_kwargs},
            )
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                where=f"documents.chat_template: line {error.lineno}",
                expected="a Jinja template",
                found=f"{error.message}",
                remedy="correct the template",
            ) from error
        except ImportError:
            raise
        except Exception as error:  # whatever a template does with what it did not expect
            found = f"{type(error).__name__}: {str(error).strip()[:200]}"
            raise BadChatError("messages that the chat template takes", found) from error
        return str(text)

    def try_writing(self, chat: Chat | Sequence[Message], **options: Any) -> str | None:
        """Return the text of a chat, or of messages that try the template, with a tool where it
        asks for one; None where the template refuses it."""
        if not isinstance(chat, Chat):
            chat = Chat(chat, self._tools_to_try, self._kwargs)
        with suppress(BadChatError):
            return self.write(chat, **options)
        return None

    @cached_property
    def _tools_to_try(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools of chats that try the template: none, unless it refuses chats without."""
        chats = (Chat(asked(PROBE)[:1], of, self._kwargs) for of in (None, _TOOLS))
        written = [self.try_writing(chat) for chat in chats]
        return _TOOLS if written[0] is None and written[1] is not None else None

    def fitted(self, chat: Chat) -> Chat:
        """Return a chat with content and arguments of calls in the form that the template takes.

        Where it wants strings, parts of text are joined; where it refuses JSON text as arguments,
        or objects, the other form is given, and where it refuses calls without content, null or
        empty text. All else stays as it is.

        Raises: BadChatError for images, audio and video.
        """
        messages = []
        for index, message in enumerate(chat.messages):
            fields: dict[str, Any] = {}
            if isinstance(content := message.get("content"), list):
                for part in content:
                    kind = str(part.get("type")) if isinstance(part, dict) else ""
                    if found := _MEDIA.search(kind):
                        raise BadChatError(
                            f"text as content of message {index}",
                            f"a part of type {kind!r}",
                            f"take chats with {found[0]} out: tokflow makes tokens of text alone",
                        )
                texts = [part["text"] for part in content if _is_text(part)]
                if len(texts) == len(content) and not self._takes_parts:
                    fields["content"] = "".join(texts)
            if calls := message.get("tool_calls"):
                change, content_beside = self._form_of_calls
                fields["tool_calls"] = [_changed_call(call, change) for call in calls]
                fields |= content_beside if "content" not in message else {}
            messages.append({**message, **fields} if fields else message)
        return replace(chat, messages=messages)

    @cached_property
    def _takes_parts(self) -> bool:
        """True if the template writes parts of text as it does a string, or takes no strings."""
        of_string = self.try_writing(asked(PROBE))
        of_parts = self.try_writing(asked([{"type": "text", "text": PROBE}]))
        return of_string is None or PROBE not in of_string or of_parts == of_string

    @cached_property
    def _form_of_calls(self) -> tuple[Callable[[Any], Any], dict[str, Any]]:
        """Function that gives the arguments of a call the form that the template takes, and the
        content with which it writes calls that have none: left out, null or empty, the first that
        it takes."""
        trials = ({"x": PROBE}, json.dumps({"x": PROBE}))
        first, second = (self.try_writing(_calling(of, content="")) is not None for of in trials)
        change = _as_it_is if first == second else _as_object if first else _as_text
        for content in ({}, {"content": None}, {"content": ""}):
            written = self.try_writing(_calling(change(trials[0]), **content))
            if written is not None and PROBE in written:
                return change, content
        return change, {}


@lru_cache(maxsize=4)
def _with_marks(source: str, opening: str, closing: str) -> str:
    """Return a template with filters for generation blocks, which put marks around them.

    So a block may stand in a macro or in a `{% set %}` block, and be written later than it is
    evaluated. Jinja has no filter that puts text behind another: it is turned round for that.
    """
    marking = f"filter replace('', '{opening}', 1) | reverse"
    marking += f" | replace('', '{closing}', 1) | reverse"

    def filtered(of: re.Match[str]) -> str:
        tag = "endfilter" if of["end"] else marking
        return f"{of['before']}{tag}{of['after']}" if of["after"] else of[0]

    return _PIECES.sub(filtered, source)


def asked(content: Any) -> list[Message]:
    """Return a question and its answer, for a trial."""
    return [{"role": "user", "content": content}, {"role": "assistant", "content": content}]


def _calling(arguments: Any, **content: Any) -> list[Message]:
    function = {"name": "f", "arguments": arguments}
    call = {"type": "function", "id": "call00000", "function": function}
    return [asked("x")[0], {"role": "assistant", **content, "tool_calls": [call]}]


def _changed_call(call: Any, change: Callable[[Any], Any]) -> Any:
    """Return a call with other arguments, also one that is no object with a `function`."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _changed_call(call["function"], change)}
    return {**call, "arguments": change(call["arguments"])} if "arguments" in call else call


def _as_object(arguments: Any) -> Any:
    with suppress(ValueError, TypeError):
        return json.loads(arguments)
    return arguments


def _as_text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _as_it_is(arguments: Any) -> Any:
    return arguments


def _is_text(part: Any) -> bool:
    is_named = isinstance(part, dict) and part.get("type", "text") == "text"
    return is_named and isinstance(part.get("text"), str)


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


def open_template(documents: DocumentsConfig, tokenizer: Tokenizer | None) -> ChatTemplate:
    """Return the template that writes the chats of a dataset.

    Without `tokenizer`, which may not exist yet, the template is the one of `documents`, and no
    special token has a name for it.

    Raises: ConfigError where there is no template, or one that gives another text each time;
    CorruptOutputError where a file of the tokenizer is damaged.
    """
    template, names = documents.chat_template, dict[str, str]()
    if tokenizer is not None:
        tokenizer.ask_for_files()
        template = template or _template_in(tokenizer.folder)
        if tokenizer.kind != "bytes":  # whose special tokens no text can spell
            own = {"eos_token": tokenizer.eos_token, "bos_token": tokenizer.bos_token}
            names = names_of_roles(tokenizer.folder, ROLES)
            names |= {role: token for role, token in own.items() if token is not None}
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
        where = "documents.chat_template"
        expected = "a template that gives the same text each time"
        found = repr(changing.group())
        remedy = (
            "set documents.chat_date to the day that it is to write, as 2026-01-31, or "
            "documents.chat_template to a .jinja file with a fixed text in its place"
        )
        raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)
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
    not_own = {*control, *template.tags}  # tags, such as <think>, are messages' own
    added = added_tokens(tokenizer).items()
    by_use = {name: id_ for name, id_ in added if _SIGNED.fullmatch(name) and name not in not_own}
    if by_use:
        user, said = asked("x")
        around = template.try_writing([user, said, user], add_generation_prompt=True) or ""
        by_use = {name: id_ for name, id_ in by_use.items() if name in around}
    return {**by_use, **control}

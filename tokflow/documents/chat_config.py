"""The fields of `documents` for chats, and for prompts with completions."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema

from tokflow.store.config import Config, Listed

TemplateKwargs: TypeAlias = Annotated[dict[str, JsonValue], WithJsonSchema({"type": "object"})]
ChatDate: TypeAlias = Annotated[str, BeforeValidator(lambda day: _as_text(day))]
ChatFormat: TypeAlias = Literal["messages", "sharegpt", "alpaca"]

ALPACA = ("instruction", "input", "output", "history", "system")
"""The columns of a record of `chat_format: alpaca`."""
OPTIONAL = ("input", "history", "system", "tools", "chat_template_kwargs_column")
"""Columns of a chat that a record may lack, by what they hold."""

RESERVED = {
    *("messages", "conversations", "tools", "documents", "chat_template"),
    *("add_generation_prompt", "continue_final_message", "return_assistant_tokens_mask"),
}
"""Names that `apply_chat_template` gives a template itself, or takes as options."""


OF_TEMPLATES = ("chat_date", "stop_tokens", "unwritten", "loss", "loss_reasoning")
"""Further fields that chats alone have."""


class ChatConfig(Config):
    """Settings by which chats, and prompts with completions, are read and written as text."""

    section: ClassVar[str] = "documents"

    messages: str | Listed[str] | None = None
    """In place of `text`: the field that holds a chat, a list of {role, content, ...}, or the JSON
    text of one; with a `transform`, the field or fields that it makes chats of. A chat template
    writes them as text; the assistant's turns are supervised. Null fields of a message are left
    out, and in parquet and arrow, where all structs of a column have the same fields, also those
    inside it, as in the arguments of a call; JSON text stays as it is there."""
    chat_format: ChatFormat | None = None
    """The layout of chats. messages: {role, content, ...}, the default with `messages`. sharegpt:
    {from, value}, in which human or user, gpt, assistant, chatgpt or model, system, tool,
    observation or function_response, and function_call are roles. alpaca, without `messages`: the
    fields instruction, input, output, history (pairs of texts) and system of a record. With
    `prompt` and `completion`, both are lists of messages of this layout; by default they are
    texts."""
    prompt: str | None = None
    """In place of `text`, with `completion`: the field that comes first and is not supervised."""
    completion: str | None = None
    """The field that follows the prompt, nothing between them; its tokens are the loss tokens. Of
    messages (see `chat_format`), the assistant's turns in it."""
    system: str | None = None
    """For chats: the field that holds what the system says first; null and empty text: nothing."""
    tools: str | None = None
    """For chats: the field that holds the definitions of the tools, a list or the JSON text of one,
    for the template; null and empty text: none."""
    chat_template: str | None = None
    """For chats: a Jinja template, or the path of a .jinja file that holds it, as
    transformers' chat templates. Default: the one that the tokenizer brings along."""
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    """For chats: further names that the template gets, as {enable_thinking: false}."""
    chat_template_kwargs_column: str | None = None
    """For chats: the field that holds a record's own `chat_template_kwargs`, an object or the JSON
    text of one, which take the place of those of the same name; null and empty text: none."""
    chat_date: ChatDate | None = None
    """For chats: the day that a template is told by `strftime_now`, as 2026-01-31. A template that
    asks for it is refused without, for the same raw file must always give the same tokens."""
    stop_tokens: Listed[str] = ()
    """For chats: tokens that end what the assistant says where the template does not, as
    <|user|> and <|observation|>. Default: those in `eos_token_id` of the generation_config.json
    that the tokenizer comes with."""
    unwritten: Literal["reject", "keep"] = "reject"
    """A chat with words that its template leaves out: `reject` makes it a bad document, `keep`
    makes a document of what is written. Reasoning that a template drops is counted and neither."""
    loss: Literal["assistant", "last", "all"] = "assistant"
    """The supervised part of a chat. assistant: all that the assistant says, with calls of tools
    and stop tokens; last: only after the last user's message; all: every token except BOS. `train:
    true` or false, or `weight: 1` or 0, of a message decides for it."""
    loss_reasoning: bool = True
    """For chats: false takes the assistant's reasoning out of what is supervised."""
    on_no_loss: Literal["error", "accept"] = "error"
    """For chats, and prompts with completions: `error` makes no export of a dataset of which no
    token at all is supervised; `accept` makes it."""

    @property
    def is_rendered(self) -> bool:
        """True if a chat template writes the text."""
        return self.messages is not None or self.chat_format is not None

    @property
    def is_chat(self) -> bool:
        """True if only some of the tokens are loss tokens."""
        return self.is_rendered or self.prompt is not None or self.completion is not None

    def _problems_of_chat(self, *, has_text: bool) -> Iterator[tuple[str, str]]:
        """Yield wrong fields among those of chats, with what each has to be."""
        given = [name for name in _CHATS if getattr(self, name) is not None]
        pair = [name for name in given if name in ("prompt", "completion")]
        if has_text and given:
            yield given[0], "null, or no `text` beside it"
        if len(pair) == 1:
            missing = "completion" if pair == ["prompt"] else "prompt"
            yield missing, f"a field, for there is a {pair[0]}"
        if self.messages is not None and pair:
            yield pair[0], "null, for `messages` holds the chats"
        has_lists = self.messages is not None or bool(pair)
        if self.chat_format == "alpaca" and has_lists:
            field = "messages" if not pair else pair[0]
            yield field, f"null, for chat_format: alpaca reads {', '.join(ALPACA)}"
        if self.chat_format not in (None, "alpaca") and not has_lists:
            yield "chat_format", "null, or `messages` beside it, or `prompt` and `completion`"
        named = [(name, of) for name in COLUMNS for of in as_tuple(getattr(self, name))]
        if not self.is_rendered:
            for name in ("system", "tools", "chat_template", *_KWARGS, *OF_TEMPLATES):
                if not self.is_as_usual(name):
                    yield name, "left out, for there are no messages"
        yield from ((name, "the name of a field") for name, of in named if not of)
        own = ALPACA if self.chat_format == "alpaca" else ()
        columns = [*(of for of in own if of != "system" or not self.system)]
        for name, column in named:
            if column in columns:
                yield name, "another field than those beside it"
            columns.append(column)
        if self.chat_date is not None and not _is_date(self.chat_date):
            yield "chat_date", "a date, as 2026-01-31"
        if "" in self.stop_tokens:
            yield "stop_tokens", "texts of tokens, none of them empty"
        if taken := RESERVED & self.chat_template_kwargs.keys():
            yield _KWARGS[0], f"no name that every template gets, as {min(taken)!r}"


_KWARGS = ("chat_template_kwargs", "chat_template_kwargs_column")
_CHATS = ("messages", "prompt", "completion", "chat_format")
COLUMNS = ("messages", "prompt", "completion", "system", "tools", _KWARGS[1])
"""Fields that name a column."""


def as_tuple(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return one name, several or none as a tuple."""
    return (value,) if isinstance(value, str) else value or ()


def _as_text(day: object) -> object:
    """Return a date, which YAML makes of a bare 2026-01-31, as text."""
    return day.isoformat() if isinstance(day, date) else day


def _is_date(text: str) -> bool:
    with suppress(ValueError):
        return date.fromisoformat(text).isoformat() == text
    return False

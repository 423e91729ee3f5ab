"""Marks: private characters around the words of a chat, by which its text shows whose they are."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tokflow.tokenizers.chat import BadChatError, Chat, Message
from tokflow.tokenizers.chat.template import END_THINK, THINK, ChatTemplate
from tokflow.tokenizers.engines import any_of

CharSpan: TypeAlias = tuple[int, int]
Change: TypeAlias = Callable[[str, str], str]
"""Function of a string and its kind."""

KINDS = ("content", "reasoning", "call", "name", "other", "structure")
CONTENT, REASONING, CALL, NAME, OTHER, STRUCTURE = KINDS
"""Kinds of strings. `name`: that of a tool which is called; `structure`: roles, types, ids and
names of fields, which templates compare, measure or write again, so that they are no words."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_CODES = {kind: 2 * number for number, kind in enumerate(KINDS)}
_KIND_OF_FIELD = {
    "content": CONTENT,
    "tool_calls": CALL,
    **dict.fromkeys(REASONING_FIELDS, REASONING),
    **dict.fromkeys(("role", "type", "id", "tool_call_id", "name"), STRUCTURE),
}

_FIRST, _LAST = 0xF0000, 0x10FFFD
"""Private characters of planes 15 and 16."""
_PER_MESSAGE = 2 * len(KINDS) - 2  # structure has no marks of its own

LEVELS = 3
"""Ways to mark, from 0 on: all words; without fields that no format knows; of these the assistant's
alone. The next is taken where the marks give another text."""


class Words(NamedTuple):
    """A place in a text that words of a message take up, from a mark to the next of its kind."""

    message: int
    kind: str
    start: int
    stop: int


class Taken(NamedTuple):
    """A text without its marks, and what these showed."""

    text: str
    words: Sequence[Words]
    """In the order of the text."""
    blocks: Sequence[CharSpan] | None
    """The generation blocks; None where one is not closed, or has another inside."""


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


class Marks:
    """Private characters for the words of the messages of one chat, which its text does not have.

    White space at the edges of words stays outside of them, for templates strip it, and so do tags
    that the template looks for. The first two characters are for generation blocks.
    """

    def __init__(
        self,
        text: str,
        num_messages: int,
        marker: "Marker",
        *,
        level: int,
        names: re.Pattern[str] | None = None,
    ) -> None:
        """Choose the characters. `level`: as in `LEVELS`; `names`: special tokens to put marks in,
        as well.

        Raises: BadChatError where the text leaves too few.
        """
        self._count = num_messages * _PER_MESSAGE + 2
        codes = _code_points("" if text.isascii() else text)
        used = {*codes[(codes >= _FIRST) & (codes <= _LAST)].tolist()}
        rows = range(_FIRST, _LAST + 2 - self._count, self._count)
        taken = {of - (of - _FIRST) % self._count for of in used}
        if (first := next((of for of in rows if of not in taken), None)) is None:
            raise BadChatError(
                "a chat of at most 13,000 messages, and without private characters",
                f"{num_messages - 1:,} messages, and {len(used):,} private characters",
            )
        self._first, self._base = first, first + 2
        self.of_blocks = chr(first), chr(first + 1)
        self._marker, self.level, self._inside = marker, level, names
        self.put: Counter[tuple[int, str]] = Counter()
        """Times that words of a message and a kind were marked."""
        self.unmarked: list[str] = []
        """Strings that are left without marks by the level."""

    def marked(self, chat: Chat) -> Chat:
        """Return a chat with marks around its words."""
        tools = [
            changed(of, lambda string, _: self._change(string, STRUCTURE, len(chat.messages)))
            for of in chat.tools or []
        ]
        messages = [self._message(of, index) for index, of in enumerate(chat.messages)]
        return replace(chat, messages=messages, tools=chat.tools and tools)

    def _message(self, message: Message, index: int) -> Message:
        is_said = message.get("role") == "assistant"
        found = changed(
            message, lambda string, kind: self._change(string, kind, index, is_said=is_said)
        )
        if is_said and not any((index, kind) in self.put for kind in (CONTENT, CALL)):
            # Without other words names of tools are marked, too.
            return changed(
                found,
                lambda string, kind: self._around(string, index, kind) if kind == NAME else string,
            )
        return found

    def _change(self, string: str, kind: str, message: int, *, is_said: bool = False) -> str:
        is_left = kind == OTHER or (self.level > 1 and kind != STRUCTURE and not is_said)
        if self.level and is_left:
            self.unmarked.append(string)
            return string
        if self._inside is not None:
            code = self._base + message * _PER_MESSAGE + _CODES[OTHER]
            pair = chr(code), chr(code + 1)
            string = self._inside.sub(
                lambda of: f"{of[0][0]}{pair[0]}{of[0][1]}{pair[1]}{of[0][2:]}", string
            )
        if kind in (STRUCTURE, NAME):
            # Where it can spell special tokens, it has to be told from the template.
            may_spell = self._marker.may_spell(string)
            return self._parts(string, message, OTHER) if may_spell else string
        return self._parts(string, message, kind, has_reasoning=is_said and kind == CONTENT)

    def _parts(self, string: str, message: int, kind: str, *, has_reasoning: bool = False) -> str:
        """Return a string with marks around its words between tags.

        `has_reasoning`: those between the tags of reasoning are of that kind.
        """
        if "<" not in string and "[" not in string:
            return self._around(string, message, kind)
        parts, own = self._marker.tags.split(string), kind  # each second one is a tag
        tags = parts[1::2] if has_reasoning else []
        if END_THINK in tags and THINK not in tags[: tags.index(END_THINK)]:
            kind = REASONING  # that a generation prompt has opened
        for at, part in enumerate(parts):
            if at % 2 == 0:
                parts[at] = self._around(part, message, kind)
            elif has_reasoning:
                kind = {THINK: REASONING, END_THINK: own}.get(part, kind)
        return "".join(parts)

    def _around(self, string: str, message: int, kind: str) -> str:
        words = string.strip()
        if not words:
            return string
        self.put[message, kind] += 1
        code = self._base + message * _PER_MESSAGE + _CODES[kind]
        start = len(string) - len(string.lstrip())
        stop = start + len(words)
        return f"{string[:start]}{chr(code)}{words}{chr(code + 1)}{string[stop:]}"

    def take(self, written: str) -> Taken:
        """Return a text without its marks, and what these show. The name of a tool counts where a
        message has it first: templates write it again with the answer of the tool."""
        codes = _code_points(written) - np.uint32(self._first)  # what is below becomes large
        starts = np.flatnonzero(codes < self._count)
        parts: list[str] = []
        words: list[Words] = []
        edges: list[tuple[int, int]] = []
        opened: dict[tuple[int, str], int] = {}
        named: set[int] = set()
        at = 0
        for code, start in zip(codes[starts].tolist(), starts.tolist(), strict=True):
            position = start - len(parts)
            parts.append(written[at:start])
            at = start + 1
            message, within = divmod(code - 2, _PER_MESSAGE)
            kind = KINDS[within >> 1]
            if message < 0:
                edges.append((code, position))
            elif not within & 1:
                opened[message, kind] = position
            elif (begin := opened.pop((message, kind), None)) is not None:
                if kind != NAME or message not in named:
                    words.append(Words(message, kind, begin, position))
                named |= {message} if kind == NAME else set()
        parts.append(written[at:])
        words.sort(key=lambda of: of.start)
        places = [position for _, position in edges]
        is_paired = [code for code, _ in edges] == [0, 1] * (len(edges) // 2)
        blocks = list(zip(places[::2], places[1::2], strict=True)) if is_paired else None
        return Taken("".join(parts), words, blocks)


def changed(message: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return a message in which each string is changed, names of its fields aside."""
    return {
        key: _changed(value, _KIND_OF_FIELD.get(key, OTHER), change)
        for key, value in message.items()
    }


def _changed(value: Any, kind: str, change: Change, *, is_argument: bool = False) -> Any:
    if isinstance(value, str):
        return change(value, kind)
    if isinstance(value, Mapping):
        return {
            change(key, STRUCTURE): _changed(
                item,
                kind if is_argument else _kind_inside(key, kind),
                change,
                is_argument=is_argument or key == "arguments",
            )
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_changed(item, kind, change, is_argument=is_argument) for item in value]
    return value


def _kind_inside(key: str, kind: str) -> str:
    """Return the kind of a field inside another; in arguments of a call all are words."""
    if kind == CALL and key == "name":
        return NAME
    found = _KIND_OF_FIELD.get(key, kind)
    return found if found in (STRUCTURE, REASONING) else kind


@dataclass(frozen=True)
class MarkedChat:
    """A chat whose words have marks, and its text."""

    chat: Chat
    """Without marks."""
    marked: Chat
    template: ChatTemplate
    marks: Marks
    taken: Taken
    """The text, with the places of words and generation blocks in it."""

    @property
    def messages(self) -> Sequence[Message]:
        """The messages without marks."""
        return self.chat.messages

    @property
    def text(self) -> str:
        """The text without marks."""
        return self.taken.text

    @cached_property
    def options(self) -> Hashable:
        """Identifier of what the template gets besides messages."""
        return bool(self.chat.tools), repr(self.chat.template_kwargs)

    def beginning(self, num_messages: int, *, add_generation_prompt: bool = False) -> Taken | None:
        """Return the text and words of the first messages; None where the template refuses them."""
        shorter = replace(self.marked, messages=self.marked.messages[:num_messages])
        written = self.template.try_writing(shorter, add_generation_prompt=add_generation_prompt)
        return None if written is None else self.marks.take(written)

    @cached_property
    def _runs(self) -> Mapping[int, slice]:
        """The words of each message that has some, from its first in the text to its last."""
        found: dict[int, slice] = {}
        for number, (message, *_) in enumerate(self.taken.words):
            found[message] = slice(found.get(message, slice(number, 0)).start, number + 1)
        return found

    def words_of(self, message: int) -> Sequence[Words]:
        """Return the words of a message, with those of others that stand among them."""
        return self.taken.words[self._runs.get(message, slice(0))]

    def is_parted(self, message: int) -> bool:
        """Return whether words of others stand among those of a message."""
        return any(of.message != message for of in self.words_of(message))

    @cached_property
    def rooms(self) -> list[CharSpan]:
        """The place of each message: from the words before its own to those behind. One without
        words stands behind the last before it that has some."""
        words, num = self.taken.words, len(self.messages)
        stops = [0, *(of.stop for of in words)]
        starts = [*(of.start for of in words), len(self.text)]
        of_tools = self._runs.get(num, slice(1, 1))
        rooms, at = [], 0 if of_tools.start else of_tools.stop
        for index in range(num):
            run = self._runs.get(index, slice(at, at))
            rooms.append((stops[run.start], starts[run.stop]))
            at = run.stop
        return rooms

    def unwritten(self) -> list[tuple[int, str]]:
        """Return message and kind of words that the text does not have, or not all of them."""
        found = Counter((of.message, of.kind) for of in self.taken.words if of.stop > of.start)
        return sorted(
            key
            for key, num in self.marks.put.items()
            if found[key] < (1 if key[1] == NAME else num)
        )


class Marker:
    """Puts marks around the words of chats, and finds them in their text."""

    def __init__(self, template: ChatTemplate, special_tokens: Iterable[str]) -> None:
        self._template = template
        names = {*special_tokens} - {""}
        self.tags = re.compile(f"({any_of(template.tags).pattern})")
        """Tags that the template looks for, which no mark may part."""
        self._names, self._tag_names = any_of(names), names & template.tags
        ends = {end for name in names for end in (name[0], name[-1])}
        self._signs = {end for end in ends if not end.isalnum()}
        self._private = "" if template.source.isascii() else template.source

    def may_spell(self, string: str) -> bool:
        """Return whether a string has a sign that a special token begins or ends with."""
        return not self._signs.isdisjoint(string)

    def mark(self, chat: Chat, text: str) -> MarkedChat:
        """Return a chat with marks around all words that the template copies into its text.

        Raises: BadChatError where not even those of the assistant can be marked, or the template
        does not write its generation blocks as they are.
        """
        for level in range(LEVELS):
            if (found := self._marked(chat, text, level)) is not None:
                return found
        if not self._template.has_generation:
            raise _not_copied("another text where the words of the assistant are marked")
        raise BadChatError(
            "a chat template that writes its generation blocks, and the words in them, as they are",
            "one that changes, cuts or measures them",
            "put {% generation %} and {% endgeneration %} where the text is written, and change "
            "what the template compares in the messages (documents.chat_template)",
        )

    def _marked(
        self, chat: Chat, text: str, level: int, names: re.Pattern[str] | None = None
    ) -> MarkedChat | None:
        """Return a chat with the marks of a level; None if they give another text. `names`: special
        tokens to put marks in, as well."""
        num = len(chat.messages) + 1  # one for the tools
        marks = Marks(text + self._private, num, self, level=level, names=names)
        marked = marks.marked(chat)
        block_marks = marks.of_blocks if self._template.has_generation else None
        written = self._template.try_writing(marked, block_marks=block_marks)
        taken = marks.take(written or "")
        if written is None or taken.text != text or taken.blocks is None:
            return None
        return MarkedChat(chat, marked, self._template, marks, taken)

    def spelt(self, chat: MarkedChat) -> list[CharSpan]:
        """Return where the text has special tokens that messages spell, and not the template.

        A special token is the messages' if a character of it is, also where the template joined it.

        Raises: BadChatError where that cannot be told.
        """
        unmarked = "\0".join(chat.marks.unmarked)
        if self.may_spell(unmarked) or self._names.search(unmarked):
            raise _not_copied("another text where all words are marked")
        if self._tag_names and any(name in repr(chat.messages) for name in self._tag_names):
            # Those tags, which have no marks for the template's sake, get some inside.
            names = any_of(self._tag_names)
            marked = self._marked(chat.chat, chat.text, chat.marks.level, names)
            if marked is None:
                raise _not_copied("another text where special tokens that they spell are marked")
            chat = marked
        places = sorted((of.start, of.stop) for of in chat.taken.words)
        found = []
        for name in self._names.finditer(chat.text):
            before = bisect_left(places, (name.end(), 0)) - 1
            if before >= 0 and places[before][1] > name.start():
                found.append(name.span())
        return found


def _not_copied(found: str) -> BadChatError:
    """Return the error of a template in whose text the words of messages cannot be told."""
    remedy = "change what it measures, cuts or compares in the messages, or the template"
    return BadChatError("a chat template that copies what the messages say", found, remedy)

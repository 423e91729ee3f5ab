"""Marks: private characters around the words of messages, by which a text shows whose they are."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

CharSpan: TypeAlias = tuple[int, int]
Change: TypeAlias = Callable[[str, str], str]
"""Function of a string and its kind."""

KINDS = ("content", "reasoning", "call", "name", "other", "structure")
CONTENT, REASONING, CALL, NAME, OTHER, STRUCTURE = KINDS
"""Kinds of strings. `name`: that of a tool which is called; `structure`: roles, types, ids and
names of fields, which templates compare, measure or write again, so that they are no words."""

THINK, END_THINK = "<think>", "</think>"
"""Tags around reasoning that stands inside the content of the assistant."""

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
_PRIVATE = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_LITERAL = re.compile(r"""'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)\"""")
_TAG = re.compile(r"<[^<>|\uff5c]+>|\[/?[A-Z]+\]")  # without the bars of control tokens


class Words(NamedTuple):
    """A place in a text that words of a message take up, from a mark to the next of its kind."""

    message: int
    kind: str
    start: int
    stop: int


def tags_of(template: str) -> set[str]:
    """Return the tags in string literals of a template, which it may look for in messages."""
    literals = (single or double for single, double in _LITERAL.findall(template))
    stripped = (literal.replace("\\n", "\n").strip() for literal in literals)
    return {THINK, END_THINK, *(literal for literal in stripped if _TAG.fullmatch(literal))}


def unused_characters(text: str, count: int) -> int:
    """Return the first of `count` private characters in a row that a text does not have.

    Raises: ValueError where there are no such.
    """
    data = text.encode(errors="surrogatepass")
    has_any = b"\xf3" in data or b"\xf4" in data  # the first byte of each
    used = sorted({ord(found) for found in _PRIVATE.findall(text)}) if has_any else []
    for before, after in pairwise([_FIRST - 1, *used, _LAST + 1]):
        if after - before > count:
            return before + 1
    raise ValueError(f"no {count:,} private characters in a row are unused")


class Marks:
    """Private characters for the words of the messages of one chat, which its text does not have.

    White space at the edges of words stays outside of them, for templates strip it, and so do tags
    that the template looks for. The first two characters are for generation blocks.
    """

    def __init__(self, text: str, num_messages: int, tags: re.Pattern[str]) -> None:
        """Choose the characters. Raises: ValueError where the text leaves too few."""
        self._count = num_messages * _PER_MESSAGE + 2
        self._first = unused_characters(text, self._count)
        self.of_blocks = chr(self._first), chr(self._first + 1)
        self._base = self._first + 2
        self._tags = tags
        self.put: Counter[tuple[int, str]] = Counter()
        """Times that words of a message and a kind were marked."""

    def around(self, string: str, message: int, kind: str, *, has_reasoning: bool = False) -> str:
        """Return a string with marks around its words.

        `has_reasoning`: those between the tags of reasoning are of that kind.
        """
        is_tagged = ("<" in string or "[" in string) and self._tags.search(string)
        if not is_tagged:
            return self._around(string, message, kind)
        parts, at, own = [], 0, kind
        tags = [tag.group() for tag in self._tags.finditer(string)] if has_reasoning else []
        if END_THINK in tags and THINK not in tags[: tags.index(END_THINK)]:
            kind = REASONING  # that a generation prompt has opened
        for tag in self._tags.finditer(string):
            parts += [self._around(string[at : tag.start()], message, kind), tag.group()]
            at = tag.end()
            if has_reasoning:
                kind = {THINK: REASONING, END_THINK: own}.get(tag.group(), kind)
        return "".join([*parts, self._around(string[at:], message, kind)])

    def _around(self, string: str, message: int, kind: str) -> str:
        bare = string.strip()
        if not bare:
            return string
        self.put[message, kind] += 1
        code = self._base + message * _PER_MESSAGE + _CODES[kind]
        marked = f"{chr(code)}{bare}{chr(code + 1)}"
        if len(bare) == len(string):
            return marked
        start = len(string) - len(string.lstrip())
        return f"{string[:start]}{marked}{string[start + len(bare) :]}"

    def inside(self, string: str, message: int, names: re.Pattern[str]) -> str:
        """Return a string with a pair of marks inside each of the names in it."""
        code = self._base + message * _PER_MESSAGE + _CODES[OTHER]
        return names.sub(
            lambda found: f"{found[0][0]}{chr(code)}{found[0][1]}{chr(code + 1)}{found[0][2:]}",
            string,
        )

    def take(self, written: str) -> "Taken":
        """Return a text without its marks, and what these show. The name of a tool counts where a
        message has it first: templates write it again with the answer of the tool."""
        codes = np.frombuffer(written.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        codes = codes - np.uint32(self._first)  # what is below becomes large
        starts = np.flatnonzero(codes < self._count)
        parts: list[str] = []
        words: list[Words] = []
        edges: list[tuple[int, bool]] = []
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
                edges.append((position, code == 1))
            elif not within & 1:
                opened[message, kind] = position
            elif (begin := opened.pop((message, kind), None)) is not None:
                if kind != NAME or message not in named:
                    words.append(Words(message, kind, begin, position))
                named |= {message} if kind == NAME else set()
        parts.append(written[at:])
        words.sort(key=lambda of: of.start)
        return Taken("".join(parts), words, _blocks(edges))


class Taken(NamedTuple):
    """A text without its marks, and what these showed."""

    text: str
    words: Sequence[Words]
    """In the order of the text."""
    blocks: Sequence[CharSpan] | None
    """The outermost generation blocks; None where one is opened or closed alone."""


def _blocks(edges: Sequence[tuple[int, bool]]) -> list[CharSpan] | None:
    """Return the outermost of spans whose edges are given; True of those that close one."""
    spans, depth, start = [], 0, 0
    for position, is_closing in edges:
        start = start if depth else position
        depth += -1 if is_closing else 1
        if depth < 0:
            return None
        if not depth:
            spans.append((start, position))
    return None if depth else spans


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

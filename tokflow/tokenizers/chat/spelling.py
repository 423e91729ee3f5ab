"""Special tokens in the text of a chat: which of them the messages spell, whole or in part."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tokflow.tokenizers.chat.template import (
    BadChatError,
    CharSpan,
    ChatTemplate,
    Message,
    strings_of,
)
from tokflow.tokenizers.engines.protocol import any_of


@dataclass(frozen=True, slots=True)
class _MarkedText:
    """A text whose messages were marked, with its special tokens."""

    text: str
    """Without the marks."""
    spelt: list[CharSpan]
    """Those with a character of the messages."""
    own: list[str]
    """Those that the template wrote, in their order."""


class ChatSpelling:
    """Tells the special tokens that messages spell from those that the template writes.

    A mark is put behind every sign in the messages that special tokens are made of, as < and |
    and > of <|im_end|>; a special token with a mark in it is the messages', also where the
    template joined it or cut something out of it. Letters get no mark, so that
    templates know roles and fields: '<|' + message.role + '|>' is the template's.
    """

    def __init__(self, template: ChatTemplate, special_tokens: Iterable[str]) -> None:
        self._template = template
        names = list(special_tokens)
        self._name = any_of(names)
        self._signs = "".join(sorted({sign for name in names for sign in _signs_of(name)}))
        self._sign = re.compile(f"[{re.escape(self._signs)}]" if names else r"(?!)")

    def find(self, messages: Sequence[Message], text: str) -> list[CharSpan]:
        """Return where the text of messages holds special tokens that they spell.

        Where a template decides by what is marked, as with `'</think>' in content`, it gives
        another text. Then only whole names are marked, and all other special tokens must be
        those that the template wrote among marked messages.

        Raises: BadChatError where that is not so.
        """
        if not self._name.search(text):
            return []
        strings = "\0".join(strings_of(messages))
        if not self._sign.search(strings):
            return []
        mark = self._template.unused_mark(strings)

        def in_all(string: str) -> str:
            for sign in self._signs:  # ten times as fast as str.translate
                string = string.replace(sign, sign + mark)
            return string

        def in_names(string: str) -> str:
            return self._name.sub(lambda name: in_all(name.group()), string)

        try:
            signs = self._marked(messages, in_all, mark)
        except BadChatError as error:
            raise _not_separable(error.problem.found) from error
        if signs.text == text:
            return signs.spelt
        whole = self._marked(messages, in_names, mark)
        if whole.text != text:
            raise _not_separable("another text where special tokens that they spell are marked")
        if whole.own != signs.own:
            raise _not_separable("other special tokens where the signs that they have are marked")
        return whole.spelt

    def _marked(
        self, messages: Sequence[Message], with_marks: Callable[[str], str], mark: str
    ) -> _MarkedText:
        written = self._template.write(_changed(messages, with_marks))
        between = written.split(mark)
        text = "".join(between)
        marked = [length - 1 for length in accumulate(map(len, between[:-1]))]
        spelt, own = [], []
        for match in self._name.finditer(text):
            first = bisect_left(marked, match.start())
            if first < len(marked) and marked[first] < match.end():
                spelt.append(match.span())
            else:
                own.append(match.group())
        return _MarkedText(text, spelt, own)


def _signs_of(name: str) -> set[str]:
    """Return what of a special token's name is no letter, digit or space, else its first letter."""
    signs = set(re.findall(r"[^\w\s]", name))
    first = {name[0], name[0].lower(), name[0].upper()}
    return signs or {letter for letter in first if len(letter) == 1}  # of the ß there is none


def _not_separable(found: str) -> BadChatError:
    return BadChatError(
        "a chat template that copies what the messages say",
        found,
        "take the special tokens, and parts of them, out of the messages",
    )


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return messages in which each string is changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _changed(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_changed(item, change) for item in value]
    return value

"""A chat with marks around its words, and the text that shows where they came to stand."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any

from tokflow.tokenizers.chat.formats import BadChatError, Chat, Message
from tokflow.tokenizers.chat.marks import (
    CALL,
    CONTENT,
    NAME,
    OTHER,
    STRUCTURE,
    Change,
    CharSpan,
    Marks,
    Taken,
    Words,
    changed,
    tags_of,
)
from tokflow.tokenizers.chat.template import ChatTemplate
from tokflow.tokenizers.engines.protocol import any_of

LEVELS = 3
"""Ways to mark, from 0 on: all words; without fields that no format knows; of these the assistant's
alone. The next is taken where the marks give another text."""


@dataclass(frozen=True)
class MarkedChat:
    """A chat whose words have marks, and its text."""

    chat: Chat
    """Without marks."""
    marked: Chat
    template: ChatTemplate
    text: str
    words: Sequence[Words]
    """The places of words in the text, in its order."""
    blocks: Sequence[CharSpan] | None
    """The generation blocks in the text; None for a template without."""
    marks: Marks
    level: int
    """As in `LEVELS`."""
    unmarked: str
    """Strings that were left without marks, with a null between."""

    @property
    def messages(self) -> Sequence[Message]:
        """The messages without marks."""
        return self.chat.messages

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
    def words_of(self) -> Mapping[int, list[Words]]:
        """The places of the words of each message that has some."""
        found: dict[int, list[Words]] = {}
        for words in self.words:
            found.setdefault(words.message, []).append(words)
        return found

    @cached_property
    def parted(self) -> set[int]:
        """The messages among whose words are those of another."""
        runs = Counter(message for message, _ in groupby(self.words, attrgetter("message")))
        return {message for message, num in runs.items() if num > 1}

    @cached_property
    def rooms(self) -> list[CharSpan]:
        """The place of each message: from the words before it to those after it, which in the text
        stand beside its own or, where it has none, are of the messages beside it."""
        num, end = len(self.messages), len(self.text)
        ends, starts = [0] * (num + 1), [end] * (num + 1)  # the last is for the tools
        for message, _, start, stop in self.words:
            ends[message] = max(ends[message], stop)
            starts[message] = min(starts[message], start)
        before = [0, *accumulate(ends[:num], max)][:num]
        after = [*accumulate(reversed([*starts[1:num], end]), min)][::-1]
        rooms = list(zip(before, after, strict=True))
        at = 0
        for message, run in groupby(self.words, attrgetter("message")):
            first, at = at, at + len(list(run))
            if message < num:
                behind = self.words[at].start if at < len(self.words) else end
                rooms[message] = self.words[first - 1].stop if first else 0, behind
        return rooms

    def unwritten(self) -> list[tuple[int, str]]:
        """Return message and kind of words that the text does not have, or not all of them."""
        found = Counter((of.message, of.kind) for of in self.words if of.stop > of.start)
        return sorted(
            key
            for key, num in self.marks.put.items()
            if found[key] < (1 if key[1] == NAME else num)
        )


class Marker:
    """Puts marks around the words of chats, and finds them in their text."""

    def __init__(self, template: ChatTemplate, special_tokens: Iterable[str]) -> None:
        self._template = template
        names, tags = {*special_tokens} - {""}, tags_of(template.source)
        self._tags, self._names, self._tag_names = any_of(tags), any_of(names), names & tags
        ends = {end for name in names for end in (name[0], name[-1])}
        self._signs = {end for end in ends if not end.isalnum()}
        """Signs that a special token begins or ends with."""
        self._private = "" if template.source.isascii() else template.source

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
        tokens to put marks in, as well.
        """
        try:
            marks = Marks(text + self._private, len(chat.messages) + 1, self._tags)
        except ValueError as error:
            expected = "a chat of at most 13,000 messages, and without private characters"
            raise BadChatError(expected, f"{len(chat.messages):,} messages, and {error}") from error
        unmarked: list[str] = []

        def change_of(message: Mapping[str, Any], index: int) -> Change:
            def change(string: str, kind: str) -> str:
                is_said = message.get("role") == "assistant"
                if level and (kind == OTHER or (level == 2 and kind != STRUCTURE and not is_said)):
                    unmarked.append(string)
                    return string
                if names is not None:
                    string = marks.inside(string, index, names)
                if kind == STRUCTURE or (kind == NAME and not _is_nameless(message)):
                    # Where it can spell special tokens, it has to be told from the template.
                    is_plain = self._signs.isdisjoint(string)
                    return string if is_plain else marks.around(string, index, OTHER)
                return marks.around(string, index, kind, has_reasoning=is_said and kind == CONTENT)

            return change

        messages = [changed(of, change_of(of, index)) for index, of in enumerate(chat.messages)]
        of_tools = change_of({}, len(messages))
        tools = chat.tools and [
            changed(of, lambda string, _: of_tools(string, STRUCTURE)) for of in chat.tools
        ]
        marked = replace(chat, messages=messages, tools=tools)
        is_blocked = self._template.has_generation
        block_marks = marks.of_blocks if is_blocked else None
        written = self._template.try_writing(marked, block_marks=block_marks)
        plain, words, blocks = marks.take(written or "")
        if written is None or plain != text or blocks is None:
            return None
        return MarkedChat(
            chat=chat,
            marked=marked,
            template=self._template,
            text=text,
            words=words,
            blocks=blocks if is_blocked else None,
            marks=marks,
            level=level,
            unmarked="\0".join(unmarked),
        )

    def spelt(self, chat: MarkedChat) -> list[CharSpan]:
        """Return where the text has special tokens that messages spell, and not the template.

        A special token is the messages' if a character of it is, also where the template joined it.

        Raises: BadChatError where that cannot be told.
        """
        if not self._signs.isdisjoint(chat.unmarked) or self._names.search(chat.unmarked):
            raise _not_copied("another text where all words are marked")
        words = chat.words
        if self._tag_names and any(name in repr(chat.messages) for name in self._tag_names):
            # Those tags, which have no marks for the template's sake, get some inside.
            marked = self._marked(chat.chat, chat.text, chat.level, any_of(self._tag_names))
            if marked is None:
                raise _not_copied("another text where special tokens that they spell are marked")
            words = marked.words
        places = sorted((of.start, of.stop) for of in words)
        found = []
        for name in self._names.finditer(chat.text):
            before = bisect_left(places, (name.end(), 0)) - 1
            if before >= 0 and places[before][1] > name.start():
                found.append(name.span())
        return found


def _not_copied(found: str) -> BadChatError:
    """Return the error of a template in whose text the words of messages cannot be told."""
    return BadChatError(
        "a chat template that copies what the messages say",
        found,
        "change what it measures, cuts or compares in the messages, or the template",
    )


def _is_nameless(message: Mapping[str, Any]) -> bool:
    """Return whether a message has no words besides reasoning and the names of tools."""
    kinds: list[str] = []

    def note(string: str, kind: str) -> str:
        kinds.extend([kind] if string.strip() else [])
        return string

    changed(message, note)
    return not {CONTENT, CALL} & {*kinds}

"""Frames: where a template's text around the words of the assistant begins and ends a turn."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tokflow.tokenizers.chat import BadChatError
from tokflow.tokenizers.chat.marks import CharSpan, MarkedChat, Words
from tokflow.tokenizers.chat.template import PROBE, THINK, ChatTemplate, asked
from tokflow.tokenizers.engines import any_of

REMEMBERED_CHARS = 2_000
"""Characters of a frame; how a longer one is divided is found anew in each chat."""
REMEMBERED_FRAMES = 10_000


@dataclass(frozen=True, slots=True)
class Turn:
    """A message in a text; spans are (start, stop) in code points."""

    index: int
    """Of the message in its chat."""
    role: str
    span: CharSpan
    """All that the model has to emit, stop token included; of other roles, the words."""
    parts: tuple[Words, ...]
    """The words in it."""
    has_stop: bool
    """True if the span ends as the template ends what the assistant says."""


class _Ends(NamedTuple):
    """Text that a template writes where the assistant begins and ends."""

    prompt: str | None
    """The generation prompt after a user; None where the template has none."""
    is_open: bool
    """True if nothing closes what the assistant says."""
    closers: tuple[str, ...]
    """Special tokens that do, at the end of a chat and before another message."""


class Frames:
    """The frames that a template puts around turns, learnt from shorter chats and remembered."""

    def __init__(
        self, template: ChatTemplate, special_tokens: Iterable[str], stops: Iterable[str]
    ) -> None:
        """Take a template. `stops`: tokens after which the model is asked for no more."""
        self._stops = list(stops)
        self._special = {*special_tokens, *self._stops} - {""}
        self._any_special = any_of(self._special)
        names = any_of(self._special | template.tags)
        self._piece = re.compile(rf"({names.pattern}|\n+)")
        self._memory: dict[Hashable, int] = {}
        self._template = template

    @cached_property
    def ends(self) -> _Ends:
        """The ends of frames in chats of one word each."""
        write, (user, said) = self._template.try_writing, asked(PROBE)
        alone, prompt = write([user]), write([user], add_generation_prompt=True)
        given = None
        if alone is not None and prompt is not None and prompt.startswith(alone):
            given = prompt[len(alone) :]
        user = {**user, "content": "x"}
        written = [write([user, said, *more]) or "" for more in ([], [user])]
        tail, behind = (of.rpartition(PROBE)[2] if PROBE in of else "" for of in written)
        tail = tail.rstrip()
        names = self._any_special.findall(tail)
        is_prompt_added = prompt is not None and prompt == alone  # to every chat, asked for or not
        closers = names[:1] if is_prompt_added else [of for of in names if tail.endswith(of)]
        if not self._any_special.sub("", tail).strip():
            closers = names
        if tail and not behind.startswith(tail):
            closers = [*closers, *self._any_special.findall(behind)[:1]]
        return _Ends(given, not tail, tuple(closers))

    @cached_property
    def _known(self) -> tuple[tuple[str, ...], re.Pattern[str]]:
        """Stop tokens; and a pattern of one or several, white space between them."""
        known = (*self.ends.closers, *self._stops)
        name = any_of(known).pattern
        return known, re.compile(rf"(?:{name})(?:\s*(?:{name}))*")

    def turns(self, chat: MarkedChat) -> list[Turn]:
        """Return the turns of the assistant, in the order of the text. Raises: BadChatError
        where one cannot be told from the text around it."""
        of_assistant = {i for i, of in enumerate(chat.messages) if of["role"] == "assistant"}
        said = [words.message for words in chat.taken.words if words.message in of_assistant]
        if said != sorted(said):
            raise _not_shown("what the assistant says in the order of the chat", "another order")
        turns: list[Turn] = []
        floor = 0
        for index in sorted(of_assistant):
            if (turn := self._turn(chat, index, floor)) is not None:
                turns.append(turn)
                floor = turn.span[1]
        return turns

    def _turn(self, chat: MarkedChat, index: int, floor: int) -> Turn | None:
        """Return the turn of a message; None where the template writes nothing of it."""
        text, mine = chat.text, chat.words_of(index)
        if chat.is_parted(index):
            expected = f"the words of message {index} together"
            raise _not_shown(expected, "another message among them")
        before, after = chat.rooms[index]
        before = max(before, floor)
        if after < before:
            raise _not_shown(f"a place of message {index}", "none")
        begin = mine[0].start if mine else after
        frame, key = text[before:begin], self._key(chat, index, is_first=floor == before)
        start = before + self._remembered(
            (*key, not mine, frame),
            frame,
            lambda: self._given(chat, index, before, frame, bool(mine)),
        )
        end = mine[-1].stop if mine else start
        frame = text[end:after]
        said = len(frame)
        if index + 1 < len(chat.messages):
            key = (_shape(chat.messages[index]), mine[-1].kind if mine else None, chat.options)
            said = self._remembered(
                (*key, frame),
                frame,
                lambda: self._common(self._rest(chat, index + 1, end) or "", frame),
            )
        stop, has_stop = self._stop(text, end, end + said, after, has_words=bool(mine))
        if not mine and stop <= start:
            return None
        return Turn(index, "assistant", (start, stop), tuple(mine), has_stop)

    def _key(self, chat: MarkedChat, index: int, *, is_first: bool) -> tuple[Hashable, ...]:
        """Return all that the frame before a turn can depend on, as far as it is remembered."""
        near = chat.messages[max(index - 2, 0) : index]
        roles = tuple(message["role"] for message in near)
        return roles, _shape(near[-1]) if near else (), is_first, chat.options

    def _remembered(self, key: Hashable, frame: str, find: Callable[[], int]) -> int:
        if (known := self._memory.get(key)) is not None:
            return known
        found = find()
        if len(frame) <= REMEMBERED_CHARS and len(self._memory) < REMEMBERED_FRAMES:
            self._memory[key] = found
        return found

    def _given(self, chat: MarkedChat, index: int, before: int, frame: str, has_words: bool) -> int:
        """Return how much of the frame before a message the model is given.

        The reasoning that a generation prompt opens counts as said, as in TRL's templates: so the
        mask is the same whether the prompt does it or not.
        """
        prompt = self.ends.prompt
        given = self._rest(chat, index, before, is_asked=True)
        if (given := prompt if given is None else given) is None:
            raise _not_shown(f"a generation prompt before message {index}", "none")
        given = given[:found] if (found := given.rfind(THINK)) >= 0 else given
        length = self._common(given, frame)
        header = (prompt or "").split("\n")[0].split(THINK)[0]
        has_header = bool(header.strip())
        is_missing = bool(given.strip()) and not given[:length].strip()
        if is_missing and not (has_header and header in frame):
            raise _not_shown(f"the prompt {given!r} before message {index}", repr(frame[-60:]))
        has_common = bool(frame[:length].strip())
        behind = max(length + 1 - len(header), 0)
        if has_header and (has_words or not has_common) and header in frame[behind:]:
            # A header that the prompt lacks here. Without words more turns may follow in the frame.
            find = frame.rindex if has_words else frame.index
            length = max(length, find(header, behind) + len(header))
            length += frame.startswith("\n", length)
        return length

    def _rest(self, chat: MarkedChat, num: int, at: int, *, is_asked: bool = False) -> str | None:
        """Return the text of the first messages alone behind a place that the whole text has, too;
        `is_asked`: with a generation prompt. None where the template refuses them."""
        if (shorter := chat.beginning(num, add_generation_prompt=is_asked)) is None:
            return None
        plain, words, _ = shorter
        is_same = plain[:at] == chat.text[:at]
        return plain[at if is_same or not words else words[-1].stop :]

    def _stop(
        self, text: str, end: int, said: int, after: int, *, has_words: bool
    ) -> tuple[int, bool]:
        """Return the end of a turn, and whether it is a stop token."""
        stop = end + len(text[end:said].rstrip())
        known, several = self._known
        if (run := several.search(text, end, stop)) and run.end() < stop:
            # The text that goes on: another turn of the assistant, which ends too, or a template's.
            header = (self.ends.prompt or "").split("\n")[0].strip()
            goes_on = text.startswith(header, run.end()) and text.endswith(known, end, stop)
            stop = stop if goes_on else run.end()
        closing = self._special if has_words and self.ends.closers else known
        has_stop = text.endswith(tuple(closing), end, stop)
        if not has_stop or (self._stops and not text.endswith(known, end, stop)):
            behind = after - len(text[stop:after].lstrip())
            find = self._any_special.search if has_words else self._any_special.match
            found = find(text, behind, after)
            if found and found.group() in known:
                return found.end(), True
        return stop, has_stop or not (self.ends.is_open or self.ends.closers)

    def is_stop(self, text: str, start: int, stop: int) -> bool:
        """Return whether text[start:stop] ends with a stop token, white space behind it aside."""
        end = start + len(text[start:stop].rstrip())
        return text.endswith(self._known[0], start, end)

    def _common(self, one: str, other: str) -> int:
        """Return the length of the common beginning, in whole special tokens, tags and lines."""
        if other.startswith(one):
            return len(one)
        length = 0
        pieces = zip(self._piece.split(one), self._piece.split(other), strict=False)
        for piece, same in pieces:
            if piece != same:
                break
            length += len(piece)
        return length


def _not_shown(expected: str, found: str) -> BadChatError:
    return BadChatError(
        f"a chat template that shows {expected}",
        found,
        "put what the assistant says between {% generation %} and {% endgeneration %} in the "
        "template (documents.chat_template)",
    )


def _shape(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a message that are not empty."""
    return tuple(sorted(key for key, value in message.items() if value))

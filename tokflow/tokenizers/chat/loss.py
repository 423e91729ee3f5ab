"""Loss spans of a chat: the turns that its messages and the config select."""

import re
from collections.abc import Iterable, Iterator, Sequence

from tokflow.documents import DocumentsConfig
from tokflow.tokenizers.chat.formats import BadChatError, Chat, Message
from tokflow.tokenizers.chat.frames import Turn
from tokflow.tokenizers.chat.marks import CONTENT, END_THINK, REASONING, CharSpan

_END_OF_REASONING = re.compile(r"\s*(?:</[^<>\s]+>|<\|[^<>\s]+\|>|\[/[A-Z]+\])\s*")


def loss_spans(
    chat: Chat, text: str, turns: Sequence[Turn], documents: DocumentsConfig, bos_token: str | None
) -> list[CharSpan]:
    """Return the characters that are supervised, as spans in order that do not overlap.

    A message's `train`, or `weight` of 0 or 1, decides for it; without, `documents.loss` does.

    Raises: BadChatError for any other weight.
    """
    asked = [_is_asked_for(message, index) for index, message in enumerate(chat.messages)]
    if documents.loss == "all":
        begin = len(bos_token) if bos_token and text.startswith(bos_token) else 0
        spans, chosen = [(begin, len(text))], turns
        without = [turn.span for turn in turns if asked[turn.index] is False]
    else:
        by_config = _said(chat, turns, is_last=documents.loss == "last")
        chosen = [
            turn
            for turn in turns
            if (turn.index in by_config if (of := asked[turn.index]) is None else of)
        ]
        spans, without = [turn.span for turn in chosen], []
    if not documents.loss_reasoning:
        without += [
            span for turn in chosen if turn.role == "assistant" for span in _reasoning(turn, text)
        ]
    return list(_subtracted(spans, sorted(without)))


def _said(chat: Chat, turns: Sequence[Turn], *, is_last: bool) -> set[int]:
    """Return the messages that are supervised where they say nothing of it.

    The last turn is all that the assistant says, between calls of tools too, after the last user
    before the end of it.
    """
    said = {turn.index for turn in turns if turn.role == "assistant"}
    first = chat.first_supervised
    if is_last and said:
        before = chat.messages[: max(said)]
        first = max([first, *(i for i, message in enumerate(before) if message["role"] == "user")])
    return {index for index in said if index >= first}


def _is_asked_for(message: Message, index: int) -> bool | None:
    """Return whether a message asks for loss by `train` or `weight`; None where it does not say."""
    asked = {name: message[name] for name in ("train", "weight") if name in message}
    if not asked:
        return None
    for name, value in asked.items():
        is_number = name == "weight" and isinstance(value, (int, float))
        if not isinstance(value, bool) and not (is_number and value in (0, 1)):
            expected = "true or false" if name == "train" else "0 or 1"
            raise BadChatError(
                f"{expected} as `{name}` of message {index}",
                repr(value)[:60],
                "select messages with `train`: tokens have a loss or none, and no other weight",
            )
    if message["role"] != "assistant":  # which a weight of 1 does not make the model say
        asked = {name: value for name, value in asked.items() if name == "train" or not value}
    values = {bool(value) for value in asked.values()}
    if len(values) > 1:
        raise BadChatError(f"`train` and `weight` of message {index} that agree", repr(asked))
    return values.pop() if values else None


def _reasoning(turn: Turn, text: str) -> Iterator[CharSpan]:
    """Yield the reasoning of a turn, with what stands around it: up to the content, or up to the
    markup of a call."""
    start, stop = turn.span
    reasoning = [part for part in turn.parts if part.kind == REASONING]
    yield from ((part.start, part.stop) for part in reasoning)
    at = reasoning[0].stop if reasoning else start
    after = [part for part in turn.parts if part.kind != REASONING and part.start >= at]
    end = after[0].start if after else stop
    if not reasoning and END_THINK not in text[start:end]:
        return
    if not after or after[0].kind != CONTENT:
        at = text.index(END_THINK, start, end) if END_THINK in text[at:end] else at
        closing = _END_OF_REASONING.match(text, at, end)
        end = closing.end() if closing else at
    yield start, end


def _subtracted(spans: Iterable[CharSpan], without: Sequence[CharSpan]) -> Iterator[CharSpan]:
    """Yield what is in spans and not in others; both are sorted."""
    first = 0
    for start, stop in spans:
        while first < len(without) and without[first][1] <= start:
            first += 1
        at = first
        while at < len(without) and without[at][0] < stop:
            other_start, other_stop = without[at]
            if other_start > start:
                yield start, other_start
            start, at = max(start, other_stop), at + 1
        if start < stop:
            yield start, stop

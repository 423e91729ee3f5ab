"""Chats -> text: a chat template writes the messages, and which characters are supervised."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokflow.documents import Batch, DocumentsConfig, Spans
from tokflow.documents.batch import BadDocument, ParsedBatch
from tokflow.store.tables import text_buffers, to_texts
from tokflow.tokenizers.chat import BadChatError, Chat, Message, marks, read_chat
from tokflow.tokenizers.chat.frames import Frames, Turn
from tokflow.tokenizers.chat.template import (
    END_THINK,
    ChatTemplate,
    open_template,
    stop_tokens,
    tokens_of_chats,
)
from tokflow.tokenizers.tokenizer import Tokenizer

COMPARED_CHATS = 100
"""First chats of a file, of which generation blocks are compared with what the model must emit."""

CHAT_COUNTS = (
    *("turns", "turns_without_stop", "dropped_reasoning", "unwritten"),
    *("blocks_with_more", "blocks_with_less", "with_tools"),
)
"""Counts of each chat: turns of the assistant, and those without a stop token, where the chat does
not end with them; messages whose reasoning, or whose other words, the template does not write;
whether its generation blocks differ from what the model has to emit, by how; whether it has
tools."""

ROLES = ("system", "user", "assistant", "tool")
"""Roles whose tokens are counted."""
_ORDINALS = {"system": 0, "developer": 0, "user": 1, "assistant": 2, "tool": 3, "function": 3}
"""The index of a role in `ROLES`, under each name that it has."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as text; spans are (start, stop) in code points."""

    text: str
    turns: Sequence[Turn]
    """The messages in the text, in its order: of the assistant all that the model has to emit or,
    with generation blocks, these; of others the words. A message without words can lack."""
    spelt: Sequence[marks.CharSpan]
    """Special tokens that the messages, and not the template, spell."""
    loss_spans: Sequence[marks.CharSpan]
    """The characters that are supervised."""
    counts: Mapping[str, int]
    """Those of `CHAT_COUNTS` that are not 0."""


def open_renderer(documents: DocumentsConfig, tokenizer: Tokenizer | None) -> "Renderer | None":
    """Return what makes documents of messages; None where the documents are no messages.

    Raises: as `open_template` does.
    """
    if not documents.is_rendered:
        return None
    template = open_template(documents, tokenizer)
    return Renderer(
        template,
        documents,
        special_tokens=tokens_of_chats(template, tokenizer),
        stops=stop_tokens(documents, tokenizer),
        bos_token=None if tokenizer is None else tokenizer.bos_token,
    )


class Renderer:
    """A chat template with what it says, or does not say, of what is supervised.

    The text is what transformers gives. A second one, with marks around the words of messages,
    shows whose each part is; generation prompts of shorter chats, which are few and remembered,
    show where a turn begins. A template with `{% generation %}` blocks says by them what is
    supervised.

    Source: transformers 5.23 `apply_chat_template`.
    """

    def __init__(
        self,
        template: ChatTemplate,
        documents: DocumentsConfig,
        special_tokens: Mapping[str, int] | None = None,
        stops: Iterable[str] = (),
        bos_token: str | None = None,
    ) -> None:
        """Take a template and, from the tokenizer, what is special in its text."""
        self.special_tokens = dict(special_tokens or {})
        """Name to id of the tokens that are the template's, as `tokens_of_chats`."""
        self._template = template
        self._documents = documents
        self._bos_token = bos_token
        self._marker = marks.Marker(template, self.special_tokens)
        self._frames = Frames(template, self.special_tokens, stops)
        self._left_to_compare = COMPARED_CHATS if template.has_generation else 0

    def __call__(self, found: ParsedBatch) -> ParsedBatch:
        """Return the documents that the template makes of the chats that were found."""
        rendered: list[Rendered] = []
        kept: list[int] = []
        bad, records = list(found.bad), found.batch.records
        offsets, data = text_buffers(found.batch.texts)
        for index, row in enumerate(found.batch.rows.tolist()):
            try:
                record = data[offsets[index] : offsets[index + 1]].tobytes()
                rendered.append(self.render(read_chat(record, self._documents)))
            except BadChatError as error:
                of = None if records is None else int(records[index])
                bad.append(BadDocument(row, found.place(row), error.problem, of))
            else:
                kept.append(index)
        counts = [[chat.counts.get(name, 0) for name in CHAT_COUNTS] for chat in rendered]
        known = [[of for of in chat.turns if of.role in _ORDINALS] for chat in rendered]
        batch = Batch(
            found.batch.rows[kept],
            to_texts([chat.text for chat in rendered]),
            np.array([len(chat.text) for chat in rendered], dtype=np.int64),
            Spans.of([chat.loss_spans for chat in rendered]),
            Spans.of([chat.spelt for chat in rendered]),
            None if records is None else records[kept],
            turns=Spans.of(
                [[of.span for of in turns] for turns in known],
                [_ORDINALS[of.role] for turns in known for of in turns],
            ),
            chat_counts=np.array(counts, dtype=np.int64).reshape(-1, len(CHAT_COUNTS)),
        )
        bad.sort(key=lambda document: document.row)
        return ParsedBatch(batch, tuple(bad), left_out=found.left_out)

    def render(self, chat: Chat) -> Rendered:
        """Return one chat as text. Raises: BadChatError; ConfigError as the template does."""
        chat = self._template.fitted(chat)
        text = self._template.write(chat)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = repr(error.object[error.start])
            raise BadChatError("text", f"the lone surrogate {surrogate} in a message") from error
        marked = self._marker.mark(chat, text)
        counts = self._unwritten(marked)
        turns, differing = self._turns(marked)
        counts |= dict.fromkeys(differing, 1)
        last = {turn.index: turn for turn in turns if turn.role == "assistant"}  # of its blocks
        counts["turns"] = len(last)
        end = len(text.rstrip())  # where EOS can follow
        open_turns = (turn for turn in last.values() if not turn.has_stop and turn.span[1] < end)
        counts["turns_without_stop"] = sum(1 for _ in open_turns)
        counts["with_tools"] = int(chat.tools is not None)
        return Rendered(
            text,
            turns,
            self._marker.spelt(marked),
            loss_spans(chat, text, turns, self._documents, self._bos_token),
            counts,
        )

    def _unwritten(self, marked: marks.MarkedChat) -> dict[str, int]:
        """Return the number of messages of which the text does not have all words."""
        lost = marked.unwritten()
        others = [
            (index, kind) for index, kind in lost if kind in (marks.CONTENT, marks.CALL, marks.NAME)
        ]
        if others and self._documents.unwritten == "reject":
            index, kind = others[0]
            field = "content" if kind == marks.CONTENT else "tool_calls"
            raise BadChatError(
                f"a chat template that writes all of `{field}` of message {index}, "
                f"the {marked.messages[index]['role']}'s",
                "one that leaves words out",
                "use a template that writes them (documents.chat_template), take them out of the "
                "messages, set documents.unwritten: keep",
            )
        return {
            "dropped_reasoning": len({index for index, kind in lost if kind == marks.REASONING}),
            "unwritten": len({index for index, _ in others}),
        }

    def _turns(self, marked: marks.MarkedChat) -> tuple[list[Turn], list[str]]:
        """Return the turns of all messages, and how generation blocks differ from them."""
        blocks, differing = marked.taken.blocks, list[str]()
        if not self._template.has_generation or blocks is None:
            turns = self._frames.turns(marked)
        else:
            turns = self._turns_of_blocks(marked, blocks)
            if self._left_to_compare:
                self._left_to_compare -= 1
                differing = self._compared(marked, turns)
        taken = {turn.index for turn in turns}
        others = [
            Turn(index, role, (words[0].start, words[-1].stop), tuple(words), has_stop=False)
            for index, message in enumerate(marked.messages)
            if (role := message["role"]) != "assistant" and index not in taken
            if (words := marked.words_of(index)) and not marked.is_parted(index)
        ]
        return sorted([*turns, *others], key=lambda turn: turn.span), differing

    def _turns_of_blocks(
        self, marked: marks.MarkedChat, blocks: Sequence[marks.CharSpan]
    ) -> list[Turn]:
        """Return a turn for each generation block: of the message whose words it has, whatever its
        role, or without any, of the assistant's next."""
        words, starts = marked.taken.words, [of.start for of in marked.taken.words]
        said = [index for index, of in enumerate(marked.messages) if of["role"] == "assistant"]
        turns: list[Turn] = []
        for start, stop in blocks:
            first = bisect_left(starts, start)
            inside = words[first : bisect_left(starts, stop)]
            before = words[first - 1].message if first else -1
            behind = next((index for index in said if index > before), said[-1] if said else 0)
            index = inside[0].message if inside else behind
            if not inside and turns and turns[-1].span[1] == start:  # as a stop token of its own
                index = turns[-1].index
            has_stop = self._frames.is_stop(marked.text, start, stop)
            turns.append(Turn(index, "assistant", (start, stop), tuple(inside), has_stop))
        return turns

    def _compared(self, marked: marks.MarkedChat, blocks: Sequence[Turn]) -> list[str]:
        """Return how generation blocks differ from what the model has to emit, if that is known."""
        if self._frames.ends.prompt == "":
            return []
        try:
            turns = self._frames.turns(marked)
        except BadChatError:
            return []
        own, other = (np.zeros(len(marked.text), dtype=bool) for _ in range(2))
        for is_covered, some in ((own, blocks), (other, turns)):
            for turn in some:
                is_covered[slice(*turn.span)] = True
        found = {"blocks_with_more": own & ~other, "blocks_with_less": other & ~own}
        return [name for name, is_so in found.items() if is_so.any()]


_END_OF_REASONING = re.compile(r"\s*(?:</[^<>\s]+>|<\|[^<>\s]+\|>|\[/[A-Z]+\])\s*")


def loss_spans(
    chat: Chat, text: str, turns: Sequence[Turn], documents: DocumentsConfig, bos_token: str | None
) -> list[marks.CharSpan]:
    """Return the characters that are supervised, as spans in order that do not overlap.

    A message's `train`, or `weight` of 0 or 1, decides for it; without, `documents.loss` does.

    Raises: BadChatError for any other weight.
    """
    asked = [_is_asked_for(message, index) for index, message in enumerate(chat.messages)]
    is_all = documents.loss == "all"
    by_config = set[int]() if is_all else _said(chat, turns, is_last=documents.loss == "last")
    begin = len(bos_token) if bos_token and text.startswith(bos_token) else 0
    padded = np.zeros(len(text) + 2, dtype=bool)  # a place before the text, and one behind
    has_loss = padded[1:-1]
    has_loss[begin:] = is_all
    for turn in turns:
        is_chosen = asked[turn.index]
        if is_chosen is None:
            is_chosen = is_all or turn.index in by_config
        if is_chosen != is_all:
            has_loss[slice(*turn.span)] = is_chosen
        if is_chosen and turn.role == "assistant" and not documents.loss_reasoning:
            for start, stop in _reasoning(turn, text):
                has_loss[start:stop] = False
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    return [(start, stop) for start, stop in edges.reshape(-1, 2).tolist()]


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


_ASKING: dict[str, tuple[Any, str]] = {
    "train": (bool, "true or false"),
    "weight": ((int, float), "0 or 1"),
}
"""Fields by which a message asks for loss: types of their values, and these in words."""


def _is_asked_for(message: Message, index: int) -> bool | None:
    """Return whether a message asks for loss by `train` or `weight`; None where it does not say."""
    asked = {name: message[name] for name in _ASKING if name in message}
    if not asked:
        return None
    for name, value in asked.items():
        types, expected = _ASKING[name]
        if not isinstance(value, types) or value not in (0, 1):
            found = repr(value)[:60]
            remedy = "select messages with `train`: tokens have a loss or none, and no other weight"
            raise BadChatError(f"{expected} as `{name}` of message {index}", found, remedy)
    if message["role"] != "assistant":  # which a weight of 1 does not make the model say
        asked = {name: value for name, value in asked.items() if name == "train" or not value}
    values = {bool(value) for value in asked.values()}
    if len(values) > 1:
        raise BadChatError(f"`train` and `weight` of message {index} that agree", repr(asked))
    return values.pop() if values else None


def _reasoning(turn: Turn, text: str) -> Iterator[marks.CharSpan]:
    """Yield the reasoning of a turn, with what stands around it: up to the content, or up to the
    markup of a call."""
    start, stop = turn.span
    reasoning = [part for part in turn.parts if part.kind == marks.REASONING]
    yield from ((part.start, part.stop) for part in reasoning)
    at = reasoning[0].stop if reasoning else start
    after = [part for part in turn.parts if part.kind != marks.REASONING and part.start >= at]
    end = after[0].start if after else stop
    if not reasoning and END_THINK not in text[start:end]:
        return
    if not after or after[0].kind != marks.CONTENT:
        at = text.index(END_THINK, start, end) if END_THINK in text[at:end] else at
        closing = _END_OF_REASONING.match(text, at, end)
        end = closing.end() if closing else at
    yield start, end

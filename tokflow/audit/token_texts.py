"""Tokens as text for people: the report, the viewer, `tokflow inspect` and Dagster draw them
alike."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, pairwise

import numpy as np
import numpy.typing as npt

from tokflow.documents import DocumentsConfig
from tokflow.formatting import clipped, printable
from tokflow.tokenizers.chat import Chat
from tokflow.tokenizers.chat.frames import Turn
from tokflow.tokenizers.chat.marks import CharSpan
from tokflow.tokenizers.chat.renderer import Rendered
from tokflow.tokenizers.engines import ReferenceEngine
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokenizers.vocabulary import token_bytes

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

MAX_PIECES = 4
"""Bytes of a character in UTF-8, and so tokens that one may be made of."""

CHARS_OF_TOKEN = 60
"""Characters of one token that are drawn."""


def drawn(text: str) -> str:
    """Return the text of tokens so that all of it can be seen: `⏎` stands before the end of a line,
    `⇥` for a tab, and an escape for what a terminal or a browser would obey."""
    return printable(text, keep="\n\t").replace("\n", "⏎\n").replace("\t", "⇥")


def drawn_token(text: str) -> str:
    """Return the text of one token as `drawn` does, clipped where it is long."""
    return clipped(drawn(text), CHARS_OF_TOKEN)


class TokenTexts:
    """The texts of the tokens of a tokenizer, which is opened when the first is asked for.

    The text of a token alone is its bytes; of a tokenizer whose tokens are no pieces of the text it
    is what its library decodes. Raises: UntrustedCodeError where that is code that may not run.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = (of for of in (tokenizer.eos_id, tokenizer.bos_id) if of is not None)
        self.special_ids = frozenset((*tokenizer.special_tokens.values(), *added))
        self._known: dict[tuple[int, ...], str] = {}

    @cached_property
    def bytes_by_id(self) -> list[bytes | None] | None:
        """The bytes of each id; None where tokens are no pieces of the text."""
        return token_bytes(self.tokenizer)

    @cached_property
    def engine(self) -> ReferenceEngine:
        """The tokenizer's own library."""
        return open_reference(self.tokenizer)

    def decoded(self, token_ids: Sequence[int]) -> str:
        """Return the text of neighbouring tokens, special tokens by their names."""
        if token_ids and max(token_ids) >= self.tokenizer.vocab_size:
            return "(damaged: an id is not below vocab_size)"  # a check says where
        return self.engine.decode(token_ids) if token_ids else ""

    def of(self, *token_ids: int) -> str:
        """Return the text of one token, or of several together, U+FFFD for half a character."""
        if token_ids not in self._known:
            content = self.bytes_of(*token_ids)
            text = self.engine.decode(token_ids) if content is None else None
            self._known[token_ids] = text or (content or b"").decode(errors="replace")
        return self._known[token_ids]

    def bytes_of(self, *token_ids: int) -> bytes | None:
        """Return the bytes of tokens; None where tokens are no pieces of the text."""
        known = self.bytes_by_id
        return None if known is None else b"".join(known[id_] or b"" for id_ in token_ids)

    def pieces(self, token_ids: Sequence[int]) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield tokens with their text: one by one, but together those that have a character only
        together."""
        start = 0
        while start < len(token_ids):
            stop = start + 1
            while REPLACEMENT in (text := self.of(*token_ids[start:stop])):
                if stop - start == MAX_PIECES or stop == len(token_ids):
                    stop, text = start + 1, self.of(token_ids[start])
                    break
                stop += 1
            yield tuple(token_ids[start:stop]), text
            start = stop

    def chip(self, token_id: int) -> str:
        """Return the text of a token that stands alone, on one line, its spaces as dots and what is
        less than a character as its bytes."""
        content = self.bytes_of(token_id)
        text = self.of(token_id) if content is None else content.decode(errors="backslashreplace")
        return drawn_token(text).replace("\n", "").replace(" ", "·")


TEMPLATE = "template"
"""The role of what no message says."""
ADDED = "added"
"""The role of a BOS or EOS that was put around the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSpan:
    """Neighbouring characters, or tokens, of a chat that are supervised or not for one reason."""

    role: str
    """Of the message that it is of, TEMPLATE or ADDED; `prompt` or `completion` of a pair; empty
    where the chat cannot be read again."""
    is_supervised: bool
    reason: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    """Empty for characters."""


def chat_spans(chat: Chat, rendered: Rendered, documents: DocumentsConfig) -> list[ChatSpan]:
    """Return the spans of a chat's text, end to end."""
    text, turns, loss = rendered.text, rendered.turns, rendered.loss_spans
    spans = [of.span for of in turns]
    found = []
    for start, stop in pairwise(sorted({0, len(text), *chain(*loss, *spans)})):
        is_supervised = _covering(start, loss) is not None
        number = _covering(start, spans)
        turn = None if number is None else turns[number]
        is_in_part = turn and bisect_left(loss, turn.span[:1]) < bisect_left(loss, turn.span[1:])
        reason = _reason(chat, turn, documents, (start, stop), is_supervised, bool(is_in_part))
        found.append(
            ChatSpan(
                role=turn.role if turn else TEMPLATE,
                is_supervised=is_supervised,
                reason=reason,
                text=text[start:stop],
            )
        )
    return found


def _covering(place: int, spans: Sequence[CharSpan]) -> int | None:
    """Return the ordinal of the span that has a character; they are sorted, and do not overlap."""
    number = bisect_left(spans, (place + 1,)) - 1
    return number if number >= 0 and place < spans[number][1] else None


def _reason(
    chat: Chat,
    turn: Turn | None,
    documents: DocumentsConfig,
    span: tuple[int, int],
    is_supervised: bool,
    is_in_part: bool,
) -> str:
    """Return why a span is supervised, or is not. `is_in_part`: some of its turn is."""
    if turn is None:
        return "loss: all" if is_supervised else ""
    message, is_said = chat.messages[turn.index], turn.role == "assistant"
    asked = [f"{of}: {message[of]}".lower() for of in ("train", "weight") if of in message]
    if is_supervised and not is_said:
        return asked[0] if asked else "loss: all"
    if is_supervised:
        kinds = [of.kind for of in turn.parts if of.start < span[1] and of.stop > span[0]]
        stop = ["stop token"] if turn.has_stop and span[1] == turn.span[1] else []
        return ", ".join(dict.fromkeys([*kinds, *stop]))
    if not is_said:
        return "given"
    if is_in_part:
        return "loss_reasoning: false"
    if asked or documents.loss == "last":
        return asked[0] if asked else "loss: last"
    return "in the prompt"


def pair_spans(text: str, loss_spans: Sequence[tuple[int, int]]) -> list[ChatSpan]:
    """Return a prompt and its completion, `loss_spans`, as spans."""
    [(start, stop)] = loss_spans
    parts = (("prompt", False, 0, start), ("completion", True, start, stop))
    return [
        ChatSpan(role=role, is_supervised=is_one, reason="", text=text[first:last])
        for role, is_one, first, last in parts
        if first < last
    ]


def spans_of_tokens(
    spans: Sequence[ChatSpan], chars: npt.NDArray[np.int64], loss_mask: npt.NDArray[np.uint8]
) -> Iterator[tuple[int, ChatSpan]]:
    """Yield neighbouring tokens of a chat by what they are of: their number, and the span.

    `chars`: the character that each token begins with, by which it is of a span; -1 of a BOS or EOS
    that was put around the text. `loss_mask`: whether each is supervised, as it is stored. Without
    spans, only that is known.
    """
    known = [*spans, ChatSpan(role=ADDED if spans else "", is_supervised=False, reason="")]
    stops = np.cumsum([len(of.text) for of in spans])
    numbers = np.minimum(np.searchsorted(stops, chars, side="right"), max(len(spans) - 1, 0))
    numbers[chars < 0] = len(spans)
    pairs = zip(numbers.tolist(), (loss_mask > 0).tolist(), strict=True)
    for (number, is_supervised), tokens in groupby(pairs):
        yield len([*tokens]), replace(known[number], is_supervised=is_supervised, text="")

"""Tokens as text for people: the report, the viewer, `tokflow inspect` and Dagster draw them
alike."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from tokflow.shown import clipped, printable
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

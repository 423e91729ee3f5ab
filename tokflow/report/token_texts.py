"""Texts of single tokens, as they stand inside a document."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tokflow.build.plan import Plan
from tokflow.errors import UntrustedCodeError
from tokflow.tokenizers.engines import ReferenceEngine, open_reference
from tokflow.tokenizers.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

MAX_PIECES = 4
"""Bytes of a character in UTF-8, and so tokens that one may be made of."""


class TokenTexts:
    """The texts of tokens. Each is decoded behind an `a`, for a tokenizer may leave out the space
    that a text begins with."""

    def __init__(self, tokenizer: Tokenizer, engine: ReferenceEngine) -> None:
        self.tokenizer = tokenizer
        added = (of for of in (tokenizer.eos_id, tokenizer.bos_id) if of is not None)
        self.special_ids = frozenset((*tokenizer.special_tokens.values(), *added))
        self._engine = engine
        before = pa.array(["a"], pa.large_string())
        self._before: list[int] = engine.encode(before).token_ids.tolist()
        self._text_before = engine.decode(self._before)
        self._known: dict[tuple[int, ...], str] = {}

    def of(self, *token_ids: int) -> str:
        """Return the text of one token, or of several together."""
        if token_ids not in self._known:
            text = self._engine.decode([*self._before, *token_ids])
            self._known[token_ids] = text.removeprefix(self._text_before)
        return self._known[token_ids]

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


def open_texts(plan: Plan) -> TokenTexts | None:
    """Return the texts of the tokens of a dataset; None where it has no tokenizer yet, or one that
    is Python code which may not run."""
    if not plan.graph.tokenizer_output.is_made:
        return None
    tokenizer = plan.graph.tokenizer
    try:
        return TokenTexts(tokenizer, open_reference(tokenizer))
    except UntrustedCodeError:
        return None

"""Texts of single tokens, as they stand inside a document."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tokflow.errors import UntrustedCodeError
from tokflow.pipeline.plan import Plan
from tokflow.tokenizers.engines import ReferenceEngine, open_reference
from tokflow.tokenizers.token_bytes import token_bytes
from tokflow.tokenizers.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

MAX_PIECES = 4
"""Bytes of a character in UTF-8, and so tokens that one may be made of."""


class TokenTexts:
    """The texts of tokens: their bytes or, of a tokenizer whose tokens are no pieces of the text,
    what is decoded behind an `a`, for some leave out the space that a text begins with.

    Raises: UntrustedCodeError where only code decodes that may not run.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = (of for of in (tokenizer.eos_id, tokenizer.bos_id) if of is not None)
        self.special_ids = frozenset((*tokenizer.special_tokens.values(), *added))
        self._bytes = token_bytes(tokenizer)
        self._decoder = _Decoder(open_reference(tokenizer)) if self._bytes is None else None
        self._known: dict[tuple[int, ...], str] = {}
        tokens = enumerate(self._bytes or ())
        self.ids_of_none = frozenset(id_ for id_, content in tokens if content is None)
        """Ids that no token has."""

    def of(self, *token_ids: int) -> str:
        """Return the text of one token, or of several together, U+FFFD for half a character."""
        if token_ids not in self._known:
            content = self.bytes_of(*token_ids)
            text = None if content is None else content.decode(errors="replace")
            if text is None and self._decoder is not None:
                text = self._decoder.decode(token_ids)
            self._known[token_ids] = text or ""
        return self._known[token_ids]

    def bytes_of(self, *token_ids: int) -> bytes | None:
        """Return the bytes of tokens; None where tokens are no pieces of the text."""
        known = self._bytes
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


class _Decoder:
    """Decodes tokens as they stand behind others."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self._engine = engine
        before = pa.array(["a"], pa.large_string())
        self._before: list[int] = engine.encode(before).token_ids.tolist()
        self._text_before = engine.decode(self._before)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._engine.decode([*self._before, *token_ids]).removeprefix(self._text_before)


def open_texts(plan: Plan) -> TokenTexts | None:
    """Return the texts of the tokens of a dataset; None where it has no tokenizer yet, or one that
    is Python code which may not run."""
    if not plan.graph.tokenizer_output.is_made:
        return None
    try:
        return TokenTexts(plan.graph.tokenizer)
    except UntrustedCodeError:
        return None

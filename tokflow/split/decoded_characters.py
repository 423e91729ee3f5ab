"""Characters that tokens are, told by decoding them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK_TOKENS = 2**20
"""Decoded at once, so that one long document does not fill the memory."""

CONTEXT_TOKENS = 16
"""Decoded before a chunk, since a decoder may drop the space with which a text begins."""

_NO_CHARACTER = "\ufffd"
"""The decoded form of tokens that are less than a character, and a character of its own."""

Decode = Callable[[Sequence[int]], str]

TokenIds = npt.NDArray[np.unsignedinteger[Any]]


def count_characters(token_ids: TokenIds, decode: Decode) -> int:
    """Return how many characters end in the tokens of the beginning of a text.

    Characters are those of the decoded text: of the text itself, unless the tokenizer normalises.
    """
    num_chars = context = start = 0
    while start < len(token_ids):
        stop = _end_of_character(token_ids, start, start + CHUNK_TOKENS, decode)
        before = _length(token_ids[context:start], decode)
        num_chars += _length(token_ids[context:stop], decode) - before
        if start + CHUNK_TOKENS >= len(token_ids):
            rest = decode(token_ids[stop:].tolist()) if stop < len(token_ids) else ""
            return num_chars + len(rest.rstrip(_NO_CHARACTER))  # a token may be " " and a half 😀
        context = _end_of_character(token_ids, start, stop - CONTEXT_TOKENS, decode)
        start = stop
    return num_chars


def _length(token_ids: TokenIds, decode: Decode) -> int:
    return len(decode(token_ids.tolist())) if len(token_ids) else 0


def _end_of_character(token_ids: TokenIds, start: int, stop: int, decode: Decode) -> int:
    """Return the last end of a character at `stop`, or up to 3 tokens before it, for none has more
    than 4 bytes; `stop` where there is none, as in a text of many U+FFFD. `start`: where one
    begins."""
    stop = min(stop, len(token_ids))
    for end in range(stop, max(start, stop - 4), -1):
        if not decode(token_ids[start:end].tolist()).endswith(_NO_CHARACTER):
            return end
    return stop if stop - start >= 4 else start

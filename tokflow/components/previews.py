"""Previews: a little decoded text as markdown, so that a person sees what a model will."""

import re
import unicodedata
from typing import Any

import numpy.typing as npt

from tokflow.exports import Part
from tokflow.tokenizers.engines import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer

TOKENS_SHOWN = 256
"""Tokens of a file, or of a part, that are decoded."""


def preview_of_part(part: Part, tokenizer: Tokenizer) -> str:
    """Return the beginning of the part's first sequence or, of a stream, of its first tokens."""
    if not part.sequences_of:
        return preview(next((batch for batch in part.stream() if len(batch)), None), tokenizer)
    sequences = next(part.sequences(1), None)
    if sequences is None or len(sequences) == 0:
        return preview(None, tokenizer)
    return preview(sequences.token_ids[0][sequences.segment_ids[0] > 0], tokenizer)


def preview(token_ids: npt.NDArray[Any] | None, tokenizer: Tokenizer) -> str:
    """Return the text of the first tokens, in which BOS and EOS show where documents meet."""
    first = [] if token_ids is None else token_ids[:TOKENS_SHOWN].tolist()
    if not first:
        return "*no text*"
    if max(first) >= tokenizer.vocab_size:
        return "(damaged: an id is not below vocab_size)"  # a check says where
    return as_code(open_reference(tokenizer).decode(first))


def as_code(text: str) -> str:
    """Return `text` as a block of markdown that shows it letter by letter, whatever is in it."""
    shown = "".join(_visible(character) for character in text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def _visible(character: str) -> str:
    is_hidden = unicodedata.category(character) in {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
    if is_hidden and character not in "\n\t":
        return f"\\u{ord(character):04x}"
    return character

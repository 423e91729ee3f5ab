"""Previews: a little decoded text as markdown, so that a person sees what a model will."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokflow.exports import Part
from tokflow.store.arrow import to_numpy
from tokflow.tokenizers.engines import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard

PREVIEW_CHARS = 300
"""Characters shown of a document."""

NEXT_CHARS = 80
"""Characters shown of the one after it, to make the boundary visible."""

MAX_TOKENS = 4 * PREVIEW_CHARS
"""Tokens decoded: enough where each is one byte of a character of four."""


def preview_of_documents(shard: TokenShard, tokenizer: Tokenizer) -> str:
    """Return the beginning of the first document with text and that of the one after it."""
    table = shard.documents(["token_offset", "num_tokens", "num_chars"]).slice(0, 1_000)
    has_text = np.flatnonzero(to_numpy(table["num_chars"]))[:2]
    if len(has_text) == 0:
        return "*no text*"
    starts = to_numpy(table["token_offset"])[has_text]
    stops = starts + to_numpy(table["num_tokens"])[has_text]
    tokens = shard.tokens()
    return _preview(
        [tokens.read(start, stop) for start, stop in zip(starts, stops, strict=True)], tokenizer
    )


def preview_of_part(part: Part, tokenizer: Tokenizer) -> str:
    """Return the beginning of the part's first sequence or, of a stream, of its first tokens."""
    if not part.sequences_of:
        batch = next((batch for batch in part.stream() if len(batch)), None)
        return "*no text*" if batch is None else _preview([batch[:MAX_TOKENS]], tokenizer)
    sequences = next(part.sequences(1), None)
    if sequences is None or len(sequences) == 0:
        return "*no text*"
    token_ids, segment_ids = sequences.token_ids[0], sequences.segment_ids[0]
    segments = [token_ids[segment_ids == segment] for segment in (1, 2)]
    return _preview([segment for segment in segments if len(segment)], tokenizer)


def as_code(text: str) -> str:
    """Return `text` as a block of markdown that shows it letter by letter, whatever is in it."""
    shown = "".join(_visible(character) for character in text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def _preview(documents: Sequence[npt.NDArray[np.unsignedinteger]], tokenizer: Tokenizer) -> str:
    first = _beginning(documents[0], tokenizer, PREVIEW_CHARS)
    if len(documents) == 1:
        return as_code(first)
    second = _beginning(documents[1], tokenizer, NEXT_CHARS)
    return as_code(f"{first}\n──── next document ────\n{second}")


def _beginning(
    token_ids: npt.NDArray[np.unsignedinteger], tokenizer: Tokenizer, num_chars: int
) -> str:
    """Return the first characters; the end of a longer document, with its EOS, after a `…`."""
    if len(token_ids) and int(token_ids.max()) >= tokenizer.vocab_size:
        return "(damaged: an id is not below vocab_size)"  # a check says where
    engine = open_reference(tokenizer)
    text = engine.decode(token_ids[:MAX_TOKENS].tolist())
    if len(text) <= num_chars and len(token_ids) <= MAX_TOKENS:
        return text
    last = engine.decode(token_ids[-1:].tolist())
    return f"{text[:num_chars]} … {last}"


def _visible(character: str) -> str:
    is_hidden = unicodedata.category(character) in {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
    if is_hidden and character not in "\n\t":
        return f"\\u{ord(character):04x}"
    return character

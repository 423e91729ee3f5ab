"""Documents of a raw file up to the one that reaches a limit."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokflow.documents.batch import Batch
from tokflow.documents.config import Limit
from tokflow.documents.parsed import ParsedBatch, ends_of
from tokflow.errors import TokflowError

Encode = Callable[[Batch], Batch]
"""Returns a batch with its tokens."""

BYTES_PER_TOKEN = 4
"""About: so much text is tokenized at once as the tokens are likely to come from that are left."""

MIN_ENCODED_BYTES = 64 * 1024
MAX_ENCODED_BYTES = 8_000_000


def until(
    limit: Limit, parsed: Iterator[ParsedBatch], encode: Encode | None = None
) -> Iterator[ParsedBatch]:
    """Yield what was found up to and with the document that reaches the limit.

    Nothing behind it is asked for, and what is bad behind it is not there. `encode` makes the
    tokens that a limit of them counts, of little more text than it takes; without it there is no
    such limit. A document that cannot be encoded raises what `encode` does, if it comes before the
    limit.
    """
    documents, characters, tokens = limit.documents, limit.characters, limit.tokens
    for found in parsed:
        batch = found.batch
        is_counted = np.ones_like(batch.num_chars) if limit.count_empty else batch.num_chars > 0
        end, documents = _end(is_counted, documents)
        end_of_characters, characters = _end(batch.num_chars, characters)
        end = min(end, end_of_characters)
        if tokens is not None and encode is not None:
            batch = _with_tokens(batch.slice(0, min(end, len(batch.rows))), tokens, encode)
            num_tokens = batch.tokens.num_tokens if batch.tokens else batch.rows
            end_of_tokens, tokens = _end(num_tokens, tokens)
            end = min(end, end_of_tokens)
        if end <= len(found.batch.rows):
            yield _first_of(replace(found, batch=batch), end)
            return
        yield replace(found, batch=batch)


def _end(sizes: npt.NDArray[np.generic], left: int | None) -> tuple[int, int | None]:
    """Return the end of the documents that come up to a limit, more than there are where they do
    not reach it; and what is left of it."""
    if left is None:
        return len(sizes) + 1, None
    so_far = np.cumsum(sizes, dtype=np.int64)
    end = int(np.searchsorted(so_far, left)) + 1
    return end, left - (int(so_far[-1]) if len(so_far) else 0)


def _first_of(found: ParsedBatch, num_documents: int) -> ParsedBatch:
    """Return the first documents, and what is bad or left out before the last of them."""
    batch = found.batch.slice(0, num_documents)
    last = batch.rows[-1]
    bad = tuple(bad for bad in found.bad if bad.row < last)
    return replace(found, batch=batch, bad=bad, left_out=found.left_out[found.left_out < last])


def _with_tokens(batch: Batch, num_tokens: int, encode: Encode) -> Batch:
    """Return the documents with their tokens, as far as they have been encoded when there are so
    many tokens."""
    ends, encoded = ends_of(batch.texts), list[Batch]()
    start = start_byte = 0
    while start < len(ends) and num_tokens > 0:
        num_bytes = min(max(num_tokens * BYTES_PER_TOKEN, MIN_ENCODED_BYTES), MAX_ENCODED_BYTES)
        end = int(np.searchsorted(ends, start_byte + num_bytes, side="right"))
        end = max(start + 1, end)
        for piece in _encoded(batch.slice(start, end), num_tokens, encode):
            encoded.append(piece)
            num_tokens -= _num_tokens(piece)
        start, start_byte = end, int(ends[end - 1])
    return Batch.joined(encoded) if encoded else batch


def _encoded(batch: Batch, num_tokens: int, encode: Encode) -> Iterator[Batch]:
    """Yield a batch with its tokens; where it cannot be encoded, in halves, of which the second is
    left out if the first has so many tokens."""
    try:
        yield encode(batch)
    except TokflowError:
        middle = len(batch.rows) // 2
        if middle == 0:
            raise
        for half in (batch.slice(0, middle), batch.slice(middle, len(batch.rows))):
            for piece in _encoded(half, num_tokens, encode):
                yield piece
                num_tokens -= _num_tokens(piece)
            if num_tokens <= 0:
                return


def _num_tokens(batch: Batch) -> int:
    return 0 if batch.tokens is None else int(batch.tokens.num_tokens.sum())

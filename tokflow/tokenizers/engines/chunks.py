"""Long texts in chunks: any engine, with memory and time that do not run away."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.store.arrow import texts_of
from tokflow.tokenizers.engines.cut_rule import CutRule
from tokflow.tokenizers.engines.protocol import Encoded, Engine, offsets_of, text_buffers

CHUNK_BYTES = 1_000_000
"""Text of one chunk: long enough that an engine notices no difference."""

CHUNKED_BYTES = 4 * CHUNK_BYTES
"""Texts longer than this are cut."""

BATCH_BYTES = 4 * CHUNK_BYTES
"""Chunks encoded at once hold about so much text."""


@dataclass(frozen=True)
class ChunkedEngine:
    """An engine that is never given a text longer than a few chunks, where its rule allows.

    `tokenizers` takes some 150 bytes of memory for each byte it encodes at once, and gigatoken
    encodes a text on one core however long it is; both are spared by chunks.
    """

    engine: Engine
    find_rule: Callable[[], CutRule | None]
    """Called when a text is long."""
    dtype: np.dtype[np.unsignedinteger]
    """Of the tokens of chunks, where it holds them."""
    chunk_bytes: int = CHUNK_BYTES
    chunked_bytes: int = CHUNKED_BYTES
    batch_bytes: int = BATCH_BYTES

    @property
    def name(self) -> str:
        """The library that makes the tokens."""
        return self.engine.name

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, equal to those of the text encoded as a whole."""
        offsets, data = text_buffers(texts)
        is_long = np.diff(offsets) > self.chunked_bytes
        if not is_long.any() or (rule := self.find_rule()) is None:
            return self.engine.encode(texts)
        bounds = [
            self._cut(rule, data.data, start, stop) if cut else [(start, stop)]
            for start, stop, cut in zip(
                offsets[:-1].tolist(), offsets[1:].tolist(), is_long.tolist(), strict=True
            )
        ]
        return self._encode_chunks(data.data, bounds)

    def _cut(self, rule: CutRule, data: memoryview, start: int, stop: int) -> list[tuple[int, int]]:
        """Return where the chunks of one text lie; a chunk ends at the first place after
        `chunk_bytes`, so that every byte is looked at once."""
        bounds = []
        while match := rule.place.search(data, start + self.chunk_bytes, stop):
            bounds.append((start, match.end()))
            start = match.end() + rule.num_dropped
        return [*bounds, (start, stop)]

    def _encode_chunks(
        self, data: memoryview, bounds: Sequence[Sequence[tuple[int, int]]]
    ) -> Encoded:
        """Encode the chunks of all texts, a batch at a time, and join those of each text."""
        chunks = [chunk for of_text in bounds for chunk in of_text]
        ends = np.cumsum([stop - start for start, stop in chunks])
        is_last = np.append(np.diff(ends // self.batch_bytes) > 0, True)
        token_ids: list[npt.NDArray[np.unsignedinteger]] = []
        counts: list[npt.NDArray[np.int64]] = []
        for first, last in pairwise([0, *(np.flatnonzero(is_last) + 1).tolist()]):
            texts = texts_of([data[start:stop] for start, stop in chunks[first:last]])
            encoded = self.engine.encode(texts)
            token_ids.append(_narrowed(encoded.token_ids, self.dtype))
            counts.append(np.diff(encoded.offsets))
        of_chunks = offsets_of(np.concatenate(counts))
        offsets = of_chunks[offsets_of([len(of_text) for of_text in bounds])]
        return Encoded(token_ids=np.concatenate(token_ids), offsets=offsets)


def _narrowed(
    token_ids: npt.NDArray[np.unsignedinteger], dtype: np.dtype[np.unsignedinteger]
) -> npt.NDArray[np.unsignedinteger]:
    """Return the ids as `dtype`, or as they are where one of them does not fit."""
    is_fitting = len(token_ids) == 0 or token_ids.max() <= np.iinfo(dtype).max
    return token_ids.astype(dtype) if is_fitting else token_ids

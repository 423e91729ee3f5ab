"""Long texts in chunks: any engine, with memory and time that do not run away."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.store.arrow import texts_of
from tokflow.tokenizers.engines.cuts import CutRule
from tokflow.tokenizers.engines.protocol import Encoded, Engine, text_buffers

CHUNK_BYTES = 1_000_000
"""Text of one chunk: long enough that an engine notices no difference."""

CHUNKED_BYTES = 4 * CHUNK_BYTES
"""Texts longer than this are cut."""

GROUP_BYTES = 4 * CHUNK_BYTES
"""Chunks encoded at once hold about so much text."""


class ChunkedEngine:
    """An engine that is never given a text longer than a few chunks, where its rule allows.

    `tokenizers` takes some 150 bytes of memory for each byte it encodes at once, and gigatoken
    encodes a text on one core however long it is; both are spared by chunks.
    """

    def __init__(
        self,
        engine: Engine,
        find_rule: Callable[[], CutRule | None],
        *,
        dtype: np.dtype[np.unsignedinteger],
        chunk_bytes: int = CHUNK_BYTES,
        chunked_bytes: int = CHUNKED_BYTES,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        self._engine = engine
        self._find_rule = find_rule
        self._dtype = dtype
        self._chunk_bytes = chunk_bytes
        self._chunked_bytes = chunked_bytes
        self._group_bytes = group_bytes

    @property
    def name(self) -> str:
        """The library that makes the tokens."""
        return self._engine.name

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, equal to those of the text encoded as a whole."""
        offsets, data = text_buffers(texts)
        is_long = np.diff(offsets) > self._chunked_bytes
        if not is_long.any() or (rule := self._find_rule()) is None:
            return self._engine.encode(texts)
        bounds = [
            self._cut(rule, data.data, start, stop) if cut else [(start, stop)]
            for start, stop, cut in zip(
                offsets[:-1].tolist(), offsets[1:].tolist(), is_long.tolist(), strict=True
            )
        ]
        return self._encode_chunks(data.data, bounds)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return self._engine.decode(token_ids)

    def _cut(self, rule: CutRule, data: memoryview, start: int, stop: int) -> list[tuple[int, int]]:
        """Return where the chunks of one text lie; a chunk ends at the first place after
        `chunk_bytes`, so that every byte is looked at once."""
        bounds = []
        while match := rule.place.search(data, start + self._chunk_bytes, stop):
            bounds.append((start, match.end()))
            start = match.end() + rule.num_dropped
        return [*bounds, (start, stop)]

    def _encode_chunks(
        self, data: memoryview, bounds: Sequence[Sequence[tuple[int, int]]]
    ) -> Encoded:
        """Encode the chunks of all texts, a few at a time, and join those of each text."""
        token_ids: list[npt.NDArray[np.unsignedinteger]] = []
        counts: list[npt.NDArray[np.int64]] = []
        for group in self._groups([chunk for chunks in bounds for chunk in chunks]):
            encoded = self._engine.encode(texts_of([data[start:stop] for start, stop in group]))
            token_ids.append(_narrowed(encoded.token_ids, self._dtype))
            counts.append(np.diff(encoded.offsets))
        last_chunk = np.cumsum([len(chunks) for chunks in bounds])
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(counts))])
        offsets = ends[np.concatenate([np.zeros(1, dtype=np.int64), last_chunk])]
        return Encoded(token_ids=np.concatenate(token_ids), offsets=offsets)

    def _groups(self, chunks: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Yield neighbouring chunks that together hold about `group_bytes`."""
        group: list[tuple[int, int]] = []
        num_bytes = 0
        for start, stop in chunks:
            if group and num_bytes + stop - start > self._group_bytes:
                yield group
                group, num_bytes = [], 0
            group.append((start, stop))
            num_bytes += stop - start
        if group:
            yield group


def _narrowed(
    token_ids: npt.NDArray[np.unsignedinteger], dtype: np.dtype[np.unsignedinteger]
) -> npt.NDArray[np.unsignedinteger]:
    """Return the ids as `dtype`, or as they are where one of them does not fit."""
    is_fitting = len(token_ids) == 0 or token_ids.max() <= np.iinfo(dtype).max
    return token_ids.astype(dtype) if is_fitting else token_ids

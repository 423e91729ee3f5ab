"""Where texts spell special tokens."""

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import Batch
from tokflow.tokenizers.engines.protocol import text_buffers

WINDOW_BYTES = 4_000_000
"""Looked at once; a text may be a thousand times as long."""


class SpellingCounter:
    """Counts where the texts spell a special token; the leftmost and longest spelling wins."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        names = sorted((name.encode() for name in special_tokens), key=lambda name: -len(name))
        self._names = [name for name in names if name]
        self._pattern = re.compile(b"|".join(map(re.escape, self._names))) if self._names else None
        self._rarest = _common_part(self._names)

    def in_batch(self, batch: Batch) -> dict[tuple[int, str], int]:
        """Return the same for documents: of what a chat template wrote, without its own tokens."""
        if batch.spelt is None:
            return self.count(batch.texts)
        found: Counter[tuple[int, str]] = Counter()
        for index in np.flatnonzero(np.diff(batch.spelt.offsets)).tolist():
            text = str(batch.texts[index].as_py())
            found.update((index, text[a:b]) for a, b in batch.spelt.document(index))
        return dict(found)

    def count(self, texts: pa.LargeStringArray) -> dict[tuple[int, str], int]:
        """Return (index of the text, name) to number of times; empty where none is spelt.

        What stands half in one text and half in the next is no spelling.
        """
        if self._pattern is None:
            return {}
        offsets, data = text_buffers(texts)
        data_of_texts = data[offsets[0] : offsets[-1]]
        if not _holds(data_of_texts, self._rarest):
            return {}
        touched: set[int] = set()
        for match in self._pattern.finditer(data_of_texts.data):
            ends = np.array([match.start(), match.end() - 1]) + offsets[0]
            first, last = np.searchsorted(offsets, ends, side="right") - 1
            touched.update(range(first, last + 1))
        return {
            (index, name.decode()): times
            for index in sorted(touched)
            for name, times in Counter(self._pattern.findall(texts[index].as_buffer())).items()
        }


def _holds(data: npt.NDArray[np.uint8], part: bytes) -> bool:
    """Say whether the bytes hold a part that all names share, copying a little at a time.

    Fifty times faster than the pattern, which is needed only where this finds something.
    """
    windows = range(0, len(data), WINDOW_BYTES)
    return any(part in data[at : at + WINDOW_BYTES + len(part)].tobytes() for at in windows)


def _common_part(names: list[bytes]) -> bytes:
    """Return the longest beginning that all names share."""
    if not names:
        return b""
    first, last = min(names), max(names)
    length = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    return first[:length]

"""Engines, which make token ids: what each of them takes and gives."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.store.tables import offsets_of

InText = Literal["ordinary", "control"]
"""Treatment of a special token in the text: plain text, or the control token."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a batch, documents end to end, without BOS and EOS."""

    token_ids: npt.NDArray[np.unsignedinteger]
    """Shape (num_tokens,); uint32, or the tokenizer's dtype where that is known to hold them."""
    offsets: npt.NDArray[np.int64]
    """Shape (num_documents + 1,), offsets[0] = 0, in tokens."""

    def document(self, index: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the token ids of one document of the batch."""
        return self.token_ids[self.offsets[index] : self.offsets[index + 1]]

    def documents(self) -> list[npt.NDArray[np.unsignedinteger]]:
        """Return the token ids of every document."""
        return [self.document(index) for index in range(len(self.offsets) - 1)]


class Engine(Protocol):
    """One tokenizer, ready to encode."""

    @property
    def name(self) -> str:
        """The library, as metadata shows it."""

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, as if it were encoded alone."""


class ReferenceEngine(Engine, Protocol):
    """The engine of a tokenizer's own library."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens by their names."""


def encoded_from_lists(
    token_ids: Sequence[Sequence[int] | npt.NDArray[Any]], dtype: npt.DTypeLike = np.uint32
) -> Encoded:
    """Return lists or arrays of ids, one per document, as one array with offsets; `dtype` is one
    that holds them all."""
    offsets = offsets_of([len(ids) for ids in token_ids])
    flat = np.empty(offsets[-1], dtype=dtype)
    for ids, start in zip(token_ids, offsets[:-1], strict=True):
        flat[start : start + len(ids)] = ids
    return Encoded(token_ids=flat, offsets=offsets)


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of tokens' names, the longest first where several begin alike.

    Without a name it matches nowhere.
    """
    longest_first = sorted(filter(None, names), key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic of a library written in Rust into a RuntimeError with its message.

    pyo3 raises a PanicException, which is a BaseException and cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"it panicked: {error}") from error

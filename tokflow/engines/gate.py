"""The equality gate: the fast engine is used only where it gives the reference's tokens."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa

from tokflow.engines.awkward_strings import AWKWARD_STRINGS
from tokflow.engines.fast import GigatokenEngine, open_gigatoken
from tokflow.engines.protocol import Encoded, Engine, InText
from tokflow.engines.reference import open_reference
from tokflow.errors import TokenizerError, TokflowError, four_parts
from tokflow.tokenizer import Tokenizer

EngineChoice = Literal["auto", "gigatoken", "reference"]

SAMPLE_BYTES = 8_000
"""Text per batch that the reference encodes too. At 5 MB/s this is 1.6 ms, about 5 % of the
time the fast engine takes for a batch of 2 MB."""


class EngineDiffersError(TokflowError):
    """The fast engine gave other tokens than the reference; what it made must not be kept."""


class GatedEngine:
    """An engine together with the proof that it may be used.

    `reason` says why this engine runs, for the metadata.
    """

    def __init__(self, engine: Engine, *, reference: Engine | None, reason: str) -> None:
        self._engine = engine
        self._reference = reference
        self.reason = reason

    @property
    def name(self) -> str:
        """The library that makes the tokens."""
        return self._engine.name

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, a sample of them compared with the reference.

        Raises: EngineDiffersError at the first difference.
        """
        encoded = self._engine.encode(texts)
        if self._reference is not None:
            _compare_sample(texts, encoded, self._reference, self._engine.name)
        return encoded

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return (self._reference or self._engine).decode(token_ids)


@lru_cache(maxsize=4)
def open_engine(
    tokenizer: Tokenizer,
    *,
    choice: EngineChoice = "auto",
    in_text: InText = "ordinary",
    is_parallel: bool = True,
) -> GatedEngine:
    """Return the engine to use, kept for the next call with the same arguments.

    `auto` takes gigatoken if it encodes the awkward strings exactly as the reference does,
    else the reference; `gigatoken` raises where `auto` would turn to the reference.

    Raises: TokenizerError.
    """
    reference = open_reference(tokenizer, in_text=in_text)
    if tokenizer.kind == "bytes":
        return GatedEngine(reference, reference=None, reason="the bytes need no other engine")
    if choice == "reference":
        return GatedEngine(reference, reference=None, reason="asked for by engine: reference")
    try:
        fast = open_gigatoken(tokenizer, in_text=in_text, is_parallel=is_parallel)
        difference = _first_difference(fast, reference)
    except Exception as error:
        difference = f"gigatoken does not take this tokenizer: {error}"
    if difference is None:
        reason = f"equal to {reference.name} on {len(AWKWARD_STRINGS):,} awkward strings"
        return GatedEngine(fast, reference=reference, reason=reason)
    if choice == "gigatoken":
        raise TokenizerError(
            four_parts(
                where="tokenizer.engine: gigatoken",
                expected=f"the tokens of {reference.name}",
                found=difference,
                remedy="set tokenizer.engine: auto to use the reference where they differ",
            )
        )
    return GatedEngine(reference, reference=None, reason=difference)


def _first_difference(fast: GigatokenEngine, reference: Engine) -> str | None:
    texts = pa.array(AWKWARD_STRINGS, type=pa.large_string())
    got, expected = fast.encode(texts), reference.encode(texts)
    for index, text in enumerate(AWKWARD_STRINGS):
        if not np.array_equal(got.document(index), expected.document(index)):
            return _difference(text, got.document(index), expected.document(index), reference.name)
    return None


def _compare_sample(
    texts: pa.LargeStringArray, encoded: Encoded, reference: Engine, name: str
) -> None:
    """Compare whole documents, spread over the batch, up to SAMPLE_BYTES of them."""
    lengths = np.diff(encoded.offsets)
    candidates = np.flatnonzero(lengths <= SAMPLE_BYTES // 4)
    if len(candidates) == 0:
        return
    indices = candidates[np.linspace(0, len(candidates) - 1, num=4).astype(np.int64)]
    sample = texts.take(pa.array(np.unique(indices)))
    expected = reference.encode(sample)
    for position, index in enumerate(np.unique(indices)):
        got, wanted = encoded.document(int(index)), expected.document(position)
        if not np.array_equal(got, wanted):
            text = sample[position].as_py()
            raise EngineDiffersError(f"{name}: {_difference(text, got, wanted, reference.name)}")


def _difference(text: str, got: np.ndarray, expected: np.ndarray, reference: str) -> str:
    return (
        f"{text[:40]!r} became {got[:8].tolist()} with gigatoken "
        f"and {expected[:8].tolist()} with {reference}"
    )

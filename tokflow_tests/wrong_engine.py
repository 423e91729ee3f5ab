"""A fast engine that passes the gate and gives wrong tokens for some documents."""

from typing import Any

import pyarrow as pa
import pytest

from tokflow.tokenizers.engines import Encoded, encoded_from_lists
from tokflow.tokenizers.engines.gate import GatedEngine, open_engine
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens import encoder


class WrongOn:
    """A fast engine that is right but for documents that hold a word."""

    name = "gigatoken"

    def __init__(self, engine: Any, word: str) -> None:
        self._engine = engine
        self._word = word

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        encoded = self._engine.encode(texts)
        documents = [encoded.document(index).tolist() for index in range(len(texts))]
        return encoded_from_lists(
            [
                ids[::-1] if self._word in text else ids
                for text, ids in zip(texts.to_pylist(), documents, strict=True)
            ]
        )


def gate_wrong_engine(tokenizer: Tokenizer, word: str = "strange") -> GatedEngine:
    """Return an engine that is wrong on documents with a word, and its gate."""
    reference = open_reference(tokenizer)
    return GatedEngine(engine=WrongOn(reference, word), reference=reference, reason="looked equal")


def use_wrong_engine(patch: pytest.MonkeyPatch) -> None:
    """Let shards be written with such an engine, as long as nothing is known against it.

    It is the same for all shards. Of each batch it compares three documents: of the first one
    with six, all but the first, the third and the fifth.
    """
    opened: list[GatedEngine] = []

    def open_(tokenizer: Tokenizer, *, choice: str = "auto", **options: Any) -> GatedEngine:
        if choice == "reference" or tokenizer.verdict is not None:
            return open_engine(tokenizer, choice=choice, **options)
        opened[:] = opened or [gate_wrong_engine(tokenizer)]
        return opened[0]

    patch.setattr(encoder, "open_engine", open_)

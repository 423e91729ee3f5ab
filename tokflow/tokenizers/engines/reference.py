"""The reference engines: each kind of tokenizer through its own library."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tokflow.pools.cores import num_cores
from tokflow.store.integrity import clear_when_damaged
from tokflow.tokenizers.engines.protocol import (
    Encoded,
    InText,
    ReferenceEngine,
    encoded_from_lists,
    panics_as_errors,
    text_buffers,
)
from tokflow.tokenizers.engines.sentencepiece_ import MODEL_NAME, SentencePieceEngine
from tokflow.tokenizers.engines.transformers_ import TransformersEngine
from tokflow.tokenizers.tokenizer import (
    BYTES_BOS_ID,
    BYTES_EOS_ID,
    RANKS_NAME,
    Tokenizer,
    read_encoding,
    read_ranks,
)

if TYPE_CHECKING:
    import tiktoken
    import tokenizers


def open_reference(tokenizer: Tokenizer, *, in_text: InText = "ordinary") -> ReferenceEngine:
    """Return the engine whose tokens are right by definition.

    Raises: UntrustedCodeError where it is code, and `tokenizer` does not say that it may run.
    """
    if tokenizer.kind == "bytes":
        return BytesEngine()
    if tokenizer.kind == "tiktoken":
        return TiktokenEngine(open_tiktoken(tokenizer), in_text=in_text)
    if tokenizer.kind == "sentencepiece":
        return SentencePieceEngine(tokenizer.folder / MODEL_NAME, in_text=in_text)
    if not (tokenizer.folder / "tokenizer.json").is_file():
        return TransformersEngine(
            tokenizer.folder, in_text=in_text, trust_remote_code=tokenizer.trust_remote_code
        )
    return TokenizersEngine(tokenizer.folder / "tokenizer.json", in_text=in_text)


class BytesEngine:
    """Token id = byte of the UTF-8 text; BOS and EOS have ids past 255."""

    name = "bytes"

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the bytes of each text."""
        offsets, data = text_buffers(texts)
        token_ids = data[offsets[0] : offsets[-1]].astype(np.uint32)
        return Encoded(token_ids=token_ids, offsets=offsets - offsets[0])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text; what is no UTF-8 is shown as U+FFFD."""
        names = {BYTES_BOS_ID: b"<bos>", BYTES_EOS_ID: b"<eos>"}
        parts = [names.get(token_id) or bytes([token_id]) for token_id in token_ids]
        return b"".join(parts).decode(errors="replace")


class TokenizersEngine:
    """A tokenizer.json through Hugging Face's `tokenizers`."""

    name = "tokenizers"

    def __init__(self, path: Path, *, in_text: InText) -> None:
        self._tokenizer = load_tokenizer_json(path.read_bytes(), in_text)

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text; no special token is added."""
        encodings = self._tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        return encoded_from_lists([encoding.ids for encoding in encodings])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids as the tokenizer's own decoder gives it."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


@lru_cache(maxsize=2)
def load_tokenizer_json(content: bytes, in_text: InText) -> "tokenizers.Tokenizer":
    """Return the tokenizer of a tokenizer.json, free of what would change its tokens.

    Kept for the next call, since loading takes 0.2 s: a tokenizer that has just been saved, and
    so checked, is about to be used.
    """
    import tokenizers

    with panics_as_errors():
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    # A file may ask for truncation or padding, which would cut or add tokens silently.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, tokenizers.models.BPE):
        tokenizer.model.dropout = None  # draws merges at random: other tokens each time
    tokenizer.encode_special_tokens = in_text == "ordinary"
    return tokenizer


LONG_BYTES = 4_000
"""Texts that are longer on average are worth threads. On two cores 5,000 of 20 bytes take tiktoken
0.01 s one by one and 0.1 s in the threads of its own `encode_batch`; at 10,000 bytes it is even."""


class TiktokenEngine:
    """An encoding of OpenAI's `tiktoken`."""

    name = "tiktoken"

    def __init__(self, encoding: "tiktoken.Encoding", *, in_text: InText) -> None:
        self._encoding = encoding
        self._in_text = in_text

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, of long ones by a thread for each core."""
        offsets, _ = text_buffers(texts)
        strings, num_threads = texts.to_pylist(), num_cores()
        if num_threads == 1 or offsets[-1] - offsets[0] < LONG_BYTES * len(texts):
            return encoded_from_lists(list(map(self._encode, strings)))
        with ThreadPoolExecutor(num_threads) as pool:
            return encoded_from_lists(list(pool.map(self._encode, strings)))

    def _encode(self, text: str) -> list[int]:
        if self._in_text == "ordinary":
            return self._encoding.encode_ordinary(text)
        return self._encoding.encode(text, allowed_special="all")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text; what is no UTF-8 is shown as U+FFFD."""
        return self._encoding.decode(list(token_ids))


@lru_cache(maxsize=2)
def open_tiktoken(tokenizer: Tokenizer) -> "tiktoken.Encoding":
    """Return the encoding that was saved into the store; needs no network."""
    import tiktoken

    encoding = read_encoding(tokenizer.folder)
    return tiktoken.Encoding(
        encoding["name"],
        pat_str=encoding["pattern"],
        mergeable_ranks=read_ranks(tokenizer.folder / RANKS_NAME),
        special_tokens=encoding["special_tokens"],
    )


clear_when_damaged(open_tiktoken.cache_clear)

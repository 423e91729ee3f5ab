"""Character spans -> loss mask: 1 for each token that begins in a span."""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import Spans
from tokflow.errors import TokenizerError
from tokflow.store.integrity import clear_when_damaged
from tokflow.store.tables import offsets_of, to_arrow, to_numpy
from tokflow.tokenizers.engines import Encoded, InText
from tokflow.tokenizers.engines.protocol import encoded_from_lists, text_buffers
from tokflow.tokenizers.engines.reference import (
    MODEL_NAME,
    SentencePieceEngine,
    load_tokenizer_json,
)
from tokflow.tokenizers.tokenizer import Tokenizer, scan_tokenizer_json
from tokflow.tokenizers.vocabulary import read_config, token_bytes

CharStarts = npt.NDArray[np.int64]
"""Shape (num_tokens,): code points of its text before the character that a token begins in."""

TokenChars = npt.NDArray[np.int64]
"""Shape (num_tokens, 2): the code points of its text before the first character that a token
touches, and up to and with the last; of a token that stands for no character both are equal."""


def loss_mask(
    starts: CharStarts, encoded: Encoded, spans: Spans, num_chars: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Return 1 for each token that begins inside a span of its document, else 0.

    A token that is a piece of a character begins where the character does. `num_chars` has the
    code points of each document.

    For the text "Q: ab" with the span of "ab", (3, 5), and the tokens "Q", ":", " a", "b" the
    mask is 0 0 0 1: " a" begins with the space before the span.
    """
    # All documents on one line of characters, a place that is in no span after each.
    first = np.cumsum(num_chars + 1) - (num_chars + 1)
    size = int((num_chars + 1).sum())
    first_of_span = np.repeat(first, np.diff(spans.offsets))
    opened = np.bincount(first_of_span + spans.starts, minlength=size)
    closed = np.bincount(first_of_span + spans.stops, minlength=size)
    is_inside = np.cumsum(opened - closed) > 0
    first_of_token = np.repeat(first, np.diff(encoded.offsets))
    mask: npt.NDArray[np.uint8] = is_inside[first_of_token + starts].astype(np.uint8)
    return mask


def has_boundary_token(
    chars: TokenChars,
    encoded: Encoded,
    spans: Spans,
    mask: npt.NDArray[np.uint8],
    num_chars: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return True for documents with a token that has no loss, begins before a span and ends in it.

    Shape (num_documents,). `num_chars` has the code points of each document.
    """
    has_one = np.zeros(len(num_chars), dtype=bool)
    first = np.cumsum(num_chars + 1) - (num_chars + 1)
    starts, stops = (chars + np.repeat(first, np.diff(encoded.offsets))[:, None]).T
    document = np.repeat(np.arange(len(num_chars)), np.diff(spans.offsets))
    span_starts = first[document] + spans.starts
    before = np.searchsorted(starts, span_starts) - 1
    is_cut = (spans.stops > spans.starts) & (before >= encoded.offsets[document])
    is_cut[is_cut] = (stops[before[is_cut]] > span_starts[is_cut]) & (mask[before[is_cut]] == 0)
    has_one[document[is_cut]] = True
    return has_one


class TokenPlaces:
    """Finds the characters of a text that each token stands for; made by `places_of`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        is_bytes = tokenizer.kind in ("bytes", "tiktoken")
        is_bytes = is_bytes or _is_byte_level(scan_tokenizer_json(tokenizer.folder))
        found = token_bytes(tokenizer) if is_bytes else None
        self._num_bytes = None if found is None else np.array([len(of or b"") for of in found])
        """Bytes of text that each id stands for; None where tokens are no bytes of the text."""
        self._library = cache(self._open_library)

    @property
    def is_lossless(self) -> bool:
        """True if tokens are the bytes of the text, which the tokenizer leaves as it is."""
        return self._num_bytes is not None

    def spans(self, texts: pa.LargeStringArray, encoded: Encoded, *, in_text: InText) -> TokenChars:
        """Return the characters of the tokens of the texts, which were encoded with `in_text`.

        Where tokens are pieces of the text's bytes, by their lengths, which must add up to the
        text in every document; for other tokens by the offsets of the tokenizer's library, which
        are of the text as it was before the tokenizer normalised it.

        Raises: TokenizerError where neither is to be had.
        """
        if self._num_bytes is None:
            return self._by_offsets(texts, encoded, in_text)
        spans, is_exact = _by_bytes(self._num_bytes, texts, encoded)
        if not is_exact.all():
            wrong = np.flatnonzero(~is_exact)
            ids = encoded_from_lists([encoded.document(int(index)) for index in wrong])
            is_wrong = np.repeat(~is_exact, np.diff(encoded.offsets))
            spans[is_wrong] = self._by_offsets(texts.take(to_arrow(wrong)), ids, in_text)
        return spans

    def _by_offsets(
        self, texts: pa.LargeStringArray, encoded: Encoded, in_text: InText
    ) -> TokenChars:
        if self._tokenizer.kind == "sentencepiece":
            model = SentencePieceEngine(self._tokenizer.folder / MODEL_NAME, in_text=in_text)
            return np.array(model.char_spans(texts), dtype=np.int64).reshape(-1, 2)
        library = self._library(in_text)
        # Not the fast variant, which gives no offsets.
        encodings = library.encode_batch(texts.to_pylist(), add_special_tokens=False)
        ids = [token_id for encoding in encodings for token_id in encoding.ids]
        if not np.array_equal(np.array(ids, dtype=np.uint32), encoded.token_ids):
            raise self._error("the tokens that the tokenizers library gives", "other tokens")
        spans = [span for encoding in encodings for span in encoding.offsets]
        return np.array(spans, dtype=np.int64).reshape(-1, 2)

    def _open_library(self, in_text: InText) -> Any:
        """Return the tokenizer without what follows its model, which may move offsets.

        ByteLevel as post_processor has a token " there" begin after its space, where by bytes it
        begins with it; the mask must not depend on which of the two is asked.
        """
        fields = scan_tokenizer_json(self._tokenizer.folder)
        if not fields:
            name = read_config(self._tokenizer.folder).get("tokenizer_class")
            loader = f"the Python class {name or 'that transformers finds'}"
            raise self._error("a tokenizer.json", f"none, since only {loader} loads it")
        content = msgspec.json.encode({**fields, "post_processor": None})
        return load_tokenizer_json(content, in_text)

    def _error(self, expected: str, found: str) -> TokenizerError:
        return TokenizerError(
            where=f"tokenizer.kind: {self._tokenizer.kind}",
            expected=f"{expected}, for a loss mask needs the character each token begins with",
            found=found,
            remedy="save the tokenizer as a tokenizer.json and use kind: file",
        )


@lru_cache(maxsize=2)
def places_of(tokenizer: Tokenizer) -> TokenPlaces:
    """Return what finds the characters of a tokenizer's tokens; kept for the next call, for the
    bytes of a whole vocabulary take longer than a small file of chats."""
    return TokenPlaces(tokenizer)


clear_when_damaged(places_of.cache_clear)


def _by_bytes(
    num_bytes: npt.NDArray[np.int64], texts: pa.LargeStringArray, encoded: Encoded
) -> tuple[TokenChars, npt.NDArray[np.bool_]]:
    """Return the characters of tokens that are bytes of the text; of which documents they are."""
    byte_offsets, data = text_buffers(texts)
    text = data[byte_offsets[0] : byte_offsets[-1]]
    sizes = num_bytes[encoded.token_ids]
    ends = offsets_of(sizes)
    in_tokens = np.diff(ends[encoded.offsets])
    is_exact = in_tokens == np.diff(byte_offsets)
    is_exact &= np.diff(np.cumsum(np.append(0, sizes == 0))[encoded.offsets]) == 0
    first_byte = byte_offsets[:-1] - byte_offsets[0]
    num_tokens = np.diff(encoded.offsets)
    moved = np.repeat(first_byte - ends[encoded.offsets[:-1]], num_tokens)
    # Bytes 0b10xxxxxx go on with a character, all others begin one.
    chars_before = offsets_of((text & 0xC0) != 0x80)
    start = chars_before[np.minimum(ends[:-1] + moved + 1, len(text))] - 1
    stop = chars_before[np.minimum(ends[1:] + moved, len(text))]
    spans = np.stack([start, stop], axis=1)
    return spans - np.repeat(chars_before[first_byte], num_tokens)[:, None], is_exact


def _is_byte_level(fields: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json is byte-level BPE that leaves the text as it is."""
    model, before = fields.get("model") or {}, fields.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers", [before])
    return (
        model.get("type") == "BPE"
        and not fields.get("normalizer")
        and any(step.get("type") == "ByteLevel" for step in steps)
        and not any(step.get("add_prefix_space") for step in steps)
        and not (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"))
    )


def chars_without_white_space_at_end(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the code points of each text up to its last that is no white space."""
    import pyarrow.compute as pc  # 0.06 s that other datasets need not pay

    return np.asarray(to_numpy(pc.utf8_length(pc.utf8_rtrim_whitespace(texts))))

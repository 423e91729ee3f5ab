"""Character spans -> loss mask: 1 for each token that begins in a span."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import Spans
from tokflow.errors import TokenizerError
from tokflow.store.integrity import clear_when_damaged
from tokflow.store.tables import offsets_of, text_buffers, to_arrow, to_numpy
from tokflow.tokenizers.engines.protocol import Encoded, InText, encoded_from_lists
from tokflow.tokenizers.engines.reference import MODEL_NAME, SentencePieceEngine
from tokflow.tokenizers.engines.tokenizers_ import load_tokenizer_json
from tokflow.tokenizers.patterns import flat_steps
from tokflow.tokenizers.tokenizer import Tokenizer, scan_tokenizer_json
from tokflow.tokenizers.vocabulary import read_config, token_bytes

CharStarts = npt.NDArray[np.int64]
"""Shape (num_tokens,): code points of its text before the character that a token begins in."""

TokenChars = npt.NDArray[np.int64]
"""Shape (num_tokens, 2): the code points of its text before the first character that a token
touches, and up to and with the last; of a token that stands for no character both are equal."""


class CharLine:
    """The tokens of a batch on one line of characters: all documents end to end, with a place after
    each that is in no span."""

    def __init__(
        self, chars: TokenChars, offsets: npt.NDArray[np.int64], num_chars: npt.NDArray[np.int64]
    ) -> None:
        """Take the characters of the tokens, the tokens of each document by their `offsets`, and
        the code points of each document."""
        self._first = np.cumsum(num_chars + 1) - (num_chars + 1)
        self._first_token = offsets[:-1]
        self._document = np.repeat(np.arange(len(num_chars)), np.diff(offsets))
        self._starts, self._stops = (chars + self._first[self._document][:, None]).T

    def span_of_tokens(self, spans: Spans) -> npt.NDArray[np.int64]:
        """Return the index of the span of its document that each token begins in; -1 if in none.

        A token that is a piece of a character begins where the character does.

        For the text "Q: ab" with the span of "ab", (3, 5), and the tokens "Q", ":", " a", "b" it is
        -1 -1 -1 0: " a" begins with the space before the span.
        """
        first = np.repeat(self._first, np.diff(spans.offsets))
        last = np.searchsorted(first + spans.starts, self._starts, side="right") - 1
        stops = np.append(first + spans.stops, 0)  # for tokens before all spans
        return np.where(self._starts < stops[last], last, -1)

    def num_boundary_tokens(
        self, spans: Spans, mask: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each document that have no loss, begin before a span and
        end in it."""
        document = np.repeat(np.arange(len(self._first)), np.diff(spans.offsets))
        starts = self._first[document] + spans.starts
        before = np.searchsorted(self._starts, starts) - 1
        has_before = (spans.stops > spans.starts) & (before >= self._first_token[document])
        before, starts = before[has_before], starts[has_before]
        tokens = np.unique(before[(self._stops[before] > starts) & (mask[before] == 0)])
        return np.bincount(self._document[tokens], minlength=len(self._first))

    def tokens_by_kind(self, spans: Spans, num_kinds: int) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each document that begin in spans of each kind."""
        found = self.span_of_tokens(spans)
        is_inside = found >= 0
        kinds = np.zeros(len(spans.starts), np.int64) if spans.kinds is None else spans.kinds
        cells = self._document[is_inside] * num_kinds + kinds[found[is_inside]]
        num_cells = len(self._first) * num_kinds
        return np.bincount(cells, minlength=num_cells).reshape(-1, num_kinds)


class TokenPlaces:
    """Finds the characters of a text that each token stands for; made by `places_of`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        is_bytes, self._is_normalised = tokenizer.kind in ("bytes", "tiktoken"), False
        if not is_bytes:
            is_bytes, self._is_normalised = _are_bytes(scan_tokenizer_json(tokenizer.folder))
        found = token_bytes(tokenizer) if is_bytes else None
        self._bytes = None if found is None else [of or b"" for of in found]
        """The bytes of text that each id stands for; None where tokens are no bytes of the text."""
        tokens = self._bytes or []
        self._num_bytes = np.array([len(of) for of in tokens], dtype=np.int64)
        # Bytes 0b10xxxxxx go on with a character, all others begin one.
        begun = np.frombuffer(b"".join(tokens), dtype=np.uint8) & 0xC0 != 0x80
        self._num_begun = np.diff(offsets_of(begun)[offsets_of(self._num_bytes)])
        """Characters that begin in each id."""
        self._goes_on = np.array([b"\x80" <= of[:1] < b"\xc0" for of in tokens], dtype=np.int64)
        """1 where an id begins inside a character."""
        self._library = cache(self._open_library)

    @property
    def is_lossless(self) -> bool:
        """True if tokens are the bytes of the text, which the tokenizer leaves as it is."""
        return self._bytes is not None and not self._is_normalised

    def spans(self, texts: pa.LargeStringArray, encoded: Encoded, *, in_text: InText) -> TokenChars:
        """Return the characters of the tokens of the texts, which were encoded with `in_text`.

        Where tokens are pieces of the text's bytes, by their lengths, which must add up to the
        text in every document and, where the tokenizer may normalise it, must be the text; for
        others by the offsets of the tokenizer's library, which takes 20 times as long and are of
        the text as it was before it was normalised.

        Raises: TokenizerError where neither is to be had.
        """
        if self._bytes is None:
            return self._by_offsets(texts, encoded, in_text)
        spans, is_exact = self._by_bytes(texts, encoded)
        if self._is_normalised:
            is_exact &= _is_joined(self._bytes, texts, encoded)
        if not is_exact.all():
            wrong = np.flatnonzero(~is_exact)
            ids = encoded_from_lists([encoded.document(int(index)) for index in wrong])
            is_wrong = np.repeat(~is_exact, np.diff(encoded.offsets))
            spans[is_wrong] = self._by_offsets(texts.take(to_arrow(wrong)), ids, in_text)
        return spans

    def _by_bytes(
        self, texts: pa.LargeStringArray, encoded: Encoded
    ) -> tuple[TokenChars, npt.NDArray[np.bool_]]:
        """Return the characters of tokens that are bytes of the text; of which documents they are,
        as far as their number tells."""
        ids, offsets = encoded.token_ids, encoded.offsets
        sizes = self._num_bytes[ids]
        byte_offsets, _ = text_buffers(texts)
        is_exact = np.diff(offsets_of(sizes)[offsets]) == np.diff(byte_offsets)
        is_exact &= np.diff(offsets_of(sizes == 0)[offsets]) == 0
        begun = offsets_of(self._num_begun[ids])
        first = np.repeat(begun[offsets[:-1]], np.diff(offsets))
        spans = np.stack([begun[:-1] - first - self._goes_on[ids], begun[1:] - first], axis=1)
        return spans, is_exact

    def _by_offsets(
        self, texts: pa.LargeStringArray, encoded: Encoded, in_text: InText
    ) -> TokenChars:
        if self._tokenizer.kind == "sentencepiece":
            model = SentencePieceEngine(self._tokenizer.folder / MODEL_NAME, in_text=in_text)
            return np.array(model.char_spans(texts), dtype=np.int64).reshape(-1, 2)
        library = self._library(in_text)
        # Not the fast variant, which gives no offsets.
        encodings = library.encode_batch(texts.to_pylist(), add_special_tokens=False)
        ids = np.fromiter((id_ for each in encodings for id_ in each.ids), dtype=np.uint32)
        if not np.array_equal(ids, encoded.token_ids):
            raise self._error("the tokens that the tokenizers library gives", "other tokens")
        edges = (edge for each in encodings for span in each.offsets for edge in span)
        return np.fromiter(edges, dtype=np.int64).reshape(-1, 2)

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
        what = "tells which characters a token is made of"
        return load_tokenizer_json(content, in_text).version_0(what)

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


clear_when_damaged.append(places_of.cache_clear)


def _is_joined(
    bytes_of: Sequence[bytes], texts: pa.LargeStringArray, encoded: Encoded
) -> npt.NDArray[np.bool_]:
    """Return which documents are what their tokens stand for, end to end."""
    of_tokens = [b"".join([bytes_of[id_] for id_ in ids.tolist()]) for ids in encoded.documents()]
    offsets, data = text_buffers(texts)
    of_texts = (data.data[start:stop] for start, stop in pairwise(offsets.tolist()))
    pairs = zip(of_tokens, of_texts, strict=True)
    return np.array([one == other for one, other in pairs], dtype=np.bool_)


def _are_bytes(fields: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether the tokens of a tokenizer.json are bytes of the text, and whether only where
    the tokenizer does not normalise it."""
    model, normalizer = fields.get("model") or {}, fields.get("normalizer")
    before = flat_steps(fields.get("pre_tokenizer"), "pretokenizers")
    are_bytes = (
        "merges" in model  # those of GPT-2 have no type
        and any(step["type"] == "ByteLevel" for step in before)
        and not any(step.get("add_prefix_space") for step in before)
        and not (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"))
    )
    steps = flat_steps(normalizer, "normalizers")
    return are_bytes and all(of["type"] in _UNICODE_FORMS for of in steps), bool(steps)


_UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
"""Normalizers that leave a part of a text as it is where they leave the text."""


def chars_without_white_space_at_end(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the code points of each text up to its last that is no white space."""
    import pyarrow.compute as pc  # 0.06 s that other datasets need not pay

    return np.asarray(to_numpy(pc.utf8_length(pc.utf8_rtrim_whitespace(texts))))

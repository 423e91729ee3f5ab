"""The tokens of a batch: BOS and EOS added, never twice, every one accounted for; and of chats the
loss mask, 1 for each token that begins in a span of characters."""

from collections.abc import Callable
from dataclasses import dataclass
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
from tokflow.store.tables import offsets_of, text_buffers, to_arrow
from tokflow.tokenizers import flat_steps
from tokflow.tokenizers.engines import Encoded, InText, encoded_from_lists
from tokflow.tokenizers.engines.hugging_face import load_tokenizer_json
from tokflow.tokenizers.engines.reference import MODEL_NAME, SentencePieceEngine
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, scan_tokenizer_json
from tokflow.tokenizers.vocabulary import read_config, token_bytes


@dataclass(frozen=True, slots=True)
class ChatMarks:
    """Loss mask and endings of a batch of chats, before BOS and EOS are added."""

    loss_mask: npt.NDArray[np.uint8]
    """Shape (num_tokens,): 1 where the token is supervised."""
    is_ended: npt.NDArray[np.bool_]
    """Shape (num_documents,): True if the last token that is not white space is EOS."""
    is_supervised_to_its_end: npt.NDArray[np.bool_]
    """Shape (num_documents,): True if a loss span reaches the end, ignoring white space."""
    counts: npt.NDArray[np.int64]
    """Shape (num_documents, 1 or more): tokens without loss that reach into a loss span; where a
    chat template wrote the text, also tokens of each of `ROLES`."""
    is_rendered: bool
    """True if a chat template wrote the text: BOS and EOS can stand anywhere in it."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of a batch with BOS and EOS, documents end to end."""

    token_ids: npt.NDArray[np.unsignedinteger]
    """Shape (num_tokens,), of the tokenizer's dtype."""
    num_tokens: npt.NDArray[np.int64]
    """Shape (num_documents,)."""
    loss_mask: npt.NDArray[np.uint8] | None = None
    """Shape (num_tokens,); None where every token is supervised."""
    chat_counts: npt.NDArray[np.int64] | None = None
    """The `counts` of `ChatMarks`; None where every token is supervised."""

    def __getitem__(self, kept: slice) -> "TokenBatch":
        """Return the tokens of some documents, end to end."""
        first, num_tokens = int(self.num_tokens[: kept.start].sum()), self.num_tokens[kept]
        tokens = slice(first, first + int(num_tokens.sum()))
        mask, counts = self.loss_mask, self.chat_counts
        return TokenBatch(
            self.token_ids[tokens],
            num_tokens,
            None if mask is None else mask[tokens],
            None if counts is None else counts[kept],
        )


def add_bos_eos(
    encoded: Encoded,
    encoding: Encoding,
    *,
    chat: ChatMarks | None = None,
    name: Callable[[int], str] = "document {:,}".format,
) -> TokenBatch:
    """Return the tokens of a batch with the BOS and EOS of `encoding`.

    Where texts can contain control tokens, or a chat template writes them, a document that begins
    with BOS or ends with EOS gets no second one; anywhere else such an id in a text is an error,
    so that there is one EOS per document; without `eos_of_empty` a document of no tokens has
    neither. `name`: names a document in errors, by its index. An EOS that is added to a chat is
    supervised if the text is to its end; BOS is not.

    Raises: TokenizerError; also where an id is not below vocab_size: nothing ever wraps.
    """
    sizes, ids = np.diff(encoded.offsets), (encoding.bos_id, encoding.eos_id)
    is_taken = (sizes > 0) | encoding.config.eos_of_empty
    is_added = np.stack([is_taken & (id_ is not None) for id_ in ids], axis=1)
    is_control = encoding.config.special_tokens_in_text == "control"
    can_be_in_text = is_control or (chat is not None and chat.is_rendered)
    _check_ids(encoded, encoding, name, can_be_in_text=can_be_in_text)
    if can_be_in_text:
        is_ended = _is_at(encoded, encoded.offsets[1:] - 1, encoding.eos_id)
        if encoding.bos_id == encoding.eos_id:  # one token is not both
            is_ended &= sizes > 1
        if chat is not None:
            is_ended |= chat.is_ended
        is_begun = _is_at(encoded, encoded.offsets[:-1], encoding.bos_id)
        is_added &= ~np.stack([is_begun, is_ended], axis=1)
    at = np.stack([encoded.offsets[:-1], encoded.offsets[1:]], axis=1)[is_added]
    added = np.broadcast_to([id_ or 0 for id_ in ids], is_added.shape)[is_added]
    token_ids = np.insert(encoded.token_ids.astype(encoding.tokenizer.dtype, copy=False), at, added)
    num_tokens = sizes + is_added.sum(axis=1)
    if chat is None:
        return TokenBatch(token_ids, num_tokens)
    of_eos = chat.is_supervised_to_its_end
    supervised = np.stack([np.zeros_like(of_eos), of_eos], axis=1)[is_added]
    loss_mask = np.insert(chat.loss_mask, at, supervised)
    return TokenBatch(token_ids, num_tokens, loss_mask, chat.counts)


def _check_ids(
    encoded: Encoded, encoding: Encoding, name: Callable[[int], str], *, can_be_in_text: bool
) -> None:
    """Refuse ids past the vocabulary and, unless they can be there, EOS or BOS in a text."""
    tokenizer, token_ids = encoding.tokenizer, encoded.token_ids
    if len(token_ids) and (largest := int(token_ids.max())) >= tokenizer.vocab_size:
        where = f"tokenizer {tokenizer.fingerprint[:7]}"
        expected = f"ids below vocab_size {tokenizer.vocab_size:,} ({tokenizer.dtype.name})"
        remedy = (
            "the tokenizer's files disagree with its engine; set tokenizer.engine: reference "
            "and report it"
        )
        raise TokenizerError(where=where, expected=expected, found=f"id {largest:,}", remedy=remedy)
    for role, token_id, token, what in (
        ("eos", encoding.eos_id, tokenizer.eos_token, "ends"),
        ("bos", encoding.bos_id, tokenizer.bos_token, "begins"),
    ):
        if can_be_in_text or token_id is None or not (is_it := token_ids == token_id).any():
            continue
        position = int(np.argmax(is_it))
        document = int(np.searchsorted(encoded.offsets, position, side="right")) - 1
        raise TokenizerError(
            where=name(document),
            expected=f"the {role.upper()} id {token_id:,} ({token!r}), which {what} a document, "
            "nowhere in its text",
            found=f"it as token {position - int(encoded.offsets[document]):,} of the text",
            remedy=f"set tokenizer.{role}_token to a token that occurs in no text, or "
            "tokenizer.special_tokens_in_text: control to accept it",
        )


def _is_at(
    encoded: Encoded, positions: npt.NDArray[np.int64], token_id: int | None
) -> npt.NDArray[np.bool_]:
    """Return for which documents the token at a position is `token_id`; False for empty ones."""
    is_it = (np.diff(encoded.offsets) > 0) & (token_id is not None)
    is_it[is_it] = encoded.token_ids[positions[is_it]] == token_id
    return is_it


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
            fields = scan_tokenizer_json(tokenizer.folder)
            model, before = fields.get("model") or {}, fields.get("pre_tokenizer")
            steps = flat_steps(before, "pretokenizers")
            normalizers = flat_steps(fields.get("normalizer"), "normalizers")
            self._is_normalised = bool(normalizers)
            is_bytes = (
                "merges" in model  # those of GPT-2 have no type
                and any(step["type"] == "ByteLevel" for step in steps)
                and not any(step.get("add_prefix_space") for step in steps)
                and not (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"))
                and all(of["type"] in _UNICODE_FORMS for of in normalizers)
            )
        found = token_bytes(tokenizer) if is_bytes else None
        self._bytes = None if found is None else [of or b"" for of in found]
        """The bytes of text that each id stands for; None where tokens are no bytes of the text."""
        self.is_lossless = found is not None and not self._is_normalised
        """True if tokens are the bytes of the text, which the tokenizer leaves as it is."""
        tokens = self._bytes or []
        self._num_bytes = np.array([len(of) for of in tokens], dtype=np.int64)
        # Bytes 0b10xxxxxx go on with a character, all others begin one.
        begun = np.frombuffer(b"".join(tokens), dtype=np.uint8) & 0xC0 != 0x80
        self._num_begun = np.diff(offsets_of(begun)[offsets_of(self._num_bytes)])
        """Characters that begin in each id."""
        self._goes_on = np.array([b"\x80" <= of[:1] < b"\xc0" for of in tokens], dtype=np.int64)
        """1 where an id begins inside a character."""
        self._library = cache(self._open_library)

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
        ids, offsets = encoded.token_ids, encoded.offsets
        sizes, (byte_offsets, data) = self._num_bytes[ids], text_buffers(texts)
        is_exact = np.diff(offsets_of(sizes)[offsets]) == np.diff(byte_offsets)
        is_exact &= np.diff(offsets_of(sizes == 0)[offsets]) == 0
        begun = offsets_of(self._num_begun[ids])
        first = np.repeat(begun[offsets[:-1]], np.diff(offsets))
        spans = np.stack([begun[:-1] - first - self._goes_on[ids], begun[1:] - first], axis=1)
        if self._is_normalised:
            pairs = zip(encoded.documents(), pairwise(byte_offsets.tolist()), strict=True)
            are_equal = [
                b"".join(map(self._bytes.__getitem__, of.tolist())) == data.data[start:stop]
                for of, (start, stop) in pairs
            ]
            is_exact &= np.array(are_equal, dtype=bool)
        if not is_exact.all():
            wrong = np.flatnonzero(~is_exact)
            alone = encoded_from_lists([encoded.document(int(index)) for index in wrong])
            is_wrong = np.repeat(~is_exact, np.diff(encoded.offsets))
            spans[is_wrong] = self._by_offsets(texts.take(to_arrow(wrong)), alone, in_text)
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


_UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
"""Normalizers that leave a part of a text as it is where they leave the text."""

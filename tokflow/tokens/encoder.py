"""Documents -> token ids: texts by an engine, chats with a loss mask; special tokens counted."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import Batch, DocumentsConfig, DocumentSource
from tokflow.documents.source import Encode
from tokflow.errors import BadDocumentError
from tokflow.store.tables import text_buffers, to_texts
from tokflow.tokenizers import BYTE_LETTERS, flat_steps
from tokflow.tokenizers.chat.renderer import Renderer
from tokflow.tokenizers.engines import InText, any_of
from tokflow.tokenizers.engines.gate import GatedEngine, open_engine
from tokflow.tokenizers.engines.hugging_face import JsonTokenizer, load_tokenizer_json
from tokflow.tokenizers.engines.reference import MODEL_NAME, load_processor
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, in_text_of, scan_tokenizer_json
from tokflow.tokenizers.vocabulary import id_of_unknown
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.loss_mask import TokenBatch, add_bos_eos


def engine_for(encoding: Encoding, documents: DocumentsConfig) -> GatedEngine:
    """Return the engine of an encoding for the text of documents, kept for the next call.

    Raises: TokenizerError; CorruptOutputError where a file of the tokenizer is damaged.
    """
    in_text = in_text_of(documents, encoding.config.special_tokens_in_text)
    tokenizer = encoding.tokenizer
    tokenizer.ask_for_files()  # of which an engine may have been made before
    return open_engine(tokenizer, choice=encoding.config.engine, in_text=in_text)


class DocumentEncoder:
    """The engine for the documents of a source, with a count of special tokens in their text."""

    def __init__(
        self,
        source: DocumentSource,
        documents: DocumentsConfig,
        encoding: Encoding,
        render: Renderer | None = None,
    ) -> None:
        self._source = source
        self.encoding = encoding
        self.engine = engine_for(encoding, documents)
        how = encoding.tokenizer, encoding.config.special_tokens_in_text
        self._chats: ChatEncoder | None = None
        if documents.is_chat:
            # gigatoken may take a tokenizer with its special tokens, and not without them.
            choice = "reference" if encoding.config.engine == "reference" else "auto"
            plain = partial(open_engine, encoding.tokenizer, choice=choice)
            self._chats = ChatEncoder(self.engine, *how, render, plain)
        self._counter = SpecialTokenCounter(encoding.tokenizer.special_tokens)
        self.num_special_tokens = 0
        """Special tokens found in texts so far."""
        unknown, self._num_lost_of = _losses(encoding.tokenizer, in_text_of(documents, how[1]))
        # That of EOS or BOS is an error in a text.
        self._unknown = None if unknown in (encoding.eos_id, encoding.bos_id) else unknown
        counted = {"num_unknown_tokens": self._unknown, "num_lost_bytes": self._num_lost_of}
        self.lost = {name: 0 for name, of in counted.items() if of is not None}
        """num_unknown_tokens: unknown tokens, in place of text without a token of its own.
        num_lost_bytes: bytes of the normalised text that are in no token. Empty where the tokenizer
        loses nothing."""
        self.for_limit: Encode | None = None
        """Function that counts a limit of tokens; None without such a limit."""
        if documents.limit.tokens is not None:
            self.for_limit = lambda batch: replace(batch, tokens=self.encode(batch)())

    def count(self, batch: Batch) -> Batch:
        """Return the batch after counting the special tokens in its text.

        Raises: BadDocumentError for a special token in a text, if the config makes it an error.
        """
        spelt = self._counter.in_batch(batch)
        self.num_special_tokens += sum(spelt.values())
        if spelt and self.encoding.config.special_tokens_in_text == "error":
            index, token = min(spelt)
            path, row = self._source.place(batch, index)
            where = f"{path}: document {row:,}"
            expected = "no special token in the text"
            remedy = (
                "set tokenizer.special_tokens_in_text: ordinary to encode it as plain text, "
                "or control to let it become the control token"
            )
            raise BadDocumentError(
                where=where, expected=expected, found=repr(token), remedy=remedy, path=path, row=row
            )
        return batch

    def encode(self, batch: Batch) -> Callable[[], TokenBatch]:
        """Encode a batch, unless a limit has done it; return the function that adds BOS and EOS,
        for another thread.

        Raises: TokenizerError, as that function does; EngineDiffersError.
        """
        if batch.tokens is not None:
            return lambda: cast(TokenBatch, batch.tokens)

        def name(index: int) -> str:
            return "{}: document {:,}".format(*self._source.place(batch, index))

        if self._chats is None:
            return partial(add_bos_eos, self.engine.encode(batch.texts), self.encoding, name=name)
        encoded, marks = self._chats.encode(batch, name)
        return partial(add_bos_eos, encoded, self.encoding, chat=marks, name=name)

    def count_lost(
        self, texts: pa.LargeStringArray, token_ids: npt.NDArray[np.unsignedinteger]
    ) -> None:
        """Count the text lost by encoding `texts` as these tokens."""
        if self._unknown is not None:
            num_unknown = int(np.count_nonzero(token_ids == self._unknown))
            self.lost["num_unknown_tokens"] += num_unknown
        if self._num_lost_of is not None:
            self.lost["num_lost_bytes"] += self._num_lost_of(texts)


LOOKED_AT_BYTES = 256 * 1024
"""Bytes searched at once: as much as a core's cache holds."""


class SpecialTokenCounter:
    """Counts of special tokens in texts; the leftmost and longest match wins."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        names = sorted((name.encode() for name in special_tokens if name), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, names))) if names else None
        self._shared = os.path.commonprefix(names) or b""  # noqa: RUF071  # letters, not folders

    def in_batch(self, batch: Batch) -> dict[tuple[int, str], int]:
        """Return (index of the document, name) to number of times; empty without special tokens.

        Special tokens that a chat template wrote itself are not counted.
        """
        if batch.spelt is not None:
            found: Counter[tuple[int, str]] = Counter()
            for index in np.flatnonzero(np.diff(batch.spelt.offsets)).tolist():
                text = str(batch.texts[index].as_py())
                found.update((index, text[a:b]) for a, b in batch.spelt.document(index))
            return dict(found)
        offsets, data = text_buffers(batch.texts)
        data_of_texts = data[offsets[0] : offsets[-1]]
        if self._pattern is None or not _holds(data_of_texts, self._shared):
            return {}
        touched: set[int] = set()
        for match in self._pattern.finditer(data_of_texts.data):
            ends = np.array([match.start(), match.end() - 1]) + offsets[0]
            first, last = np.searchsorted(offsets, ends, side="right") - 1
            touched.update(range(first, last + 1))
        return {
            (index, name.decode()): times
            for index in sorted(touched)  # alone: half a name in one and half in the next is none
            for name, times in Counter(
                self._pattern.findall(batch.texts[index].as_buffer())
            ).items()
        }


def _holds(data: npt.NDArray[np.uint8], part: bytes) -> bool:
    """Return whether the bytes contain a part that all names share, searching block by block.

    A hundred times faster than the pattern, which is needed only where this finds something. Two
    bytes that are rare together are looked for first, without a copy: 8 GB/s, the part alone 4.
    """
    for at in range(0, len(data), LOOKED_AT_BYTES):
        piece = data[at : at + LOOKED_AT_BYTES + len(part)]
        if len(part) > 1 and not ((piece[:-1] == part[0]) & (piece[1:] == part[1])).any():
            continue
        if part in piece.tobytes():
            return True
    return False


Count: TypeAlias = Callable[[pa.LargeStringArray], int]
"""Function that counts the bytes of texts that are in no token."""

BYTES_OF_UTF8 = sorted({*range(0xF5)} - {0xC0, 0xC1})
"""Bytes that occur in UTF-8."""


@lru_cache(maxsize=4)
def _losses(tokenizer: Tokenizer, in_text: InText) -> tuple[int | None, Count | None]:
    """Return the id of unknown text, and a counter of dropped text; None if there can be none."""
    if tokenizer.kind in ("bytes", "tiktoken"):
        return None, None
    if tokenizer.kind == "sentencepiece":
        processor = load_processor((tokenizer.folder / MODEL_NAME).read_bytes())
        pieces = map(processor.piece_to_id, map(_byte_token, BYTES_OF_UTF8))
        has_bytes = all(map(processor.is_byte, pieces))
        return (None if has_bytes else id_of_unknown(tokenizer)), None
    path = tokenizer.folder / "tokenizer.json"
    if not path.is_file():  # what its code drops is not known
        return id_of_unknown(tokenizer), None
    loaded = load_tokenizer_json(path.read_bytes(), in_text)
    vocabulary = _Vocabulary(scan_tokenizer_json(tokenizer.folder), loaded, in_text)
    if vocabulary.is_whole:
        return None, None
    return (None, vocabulary.num_lost) if vocabulary.drops else (id_of_unknown(tokenizer), None)


class _Vocabulary:
    """The vocabulary of a tokenizer.json, by the symbols that text consists of before any merge:
    its characters or, in a byte-level one, the letters that stand for its bytes."""

    def __init__(self, fields: Mapping[str, Any], loaded: JsonTokenizer, in_text: InText) -> None:
        model = fields["model"]
        kind = model.get("type")
        if kind is None:  # as in files of old
            kind = "BPE" if "merges" in model else "Unigram" if "unk_id" in model else ""
        self.drops = kind == "BPE" and model.get("unk_token") is None
        """True if text without a token is dropped silently; False if it becomes unknown."""
        self._has: Callable[[str], bool] = lambda token: loaded.id_in_model(token) is not None
        self._before = model.get("continuing_subword_prefix") or ""
        self._after = model.get("end_of_word_suffix") or ""
        self._takes_words = bool(model.get("ignore_merges"))
        self._takes_bytes = bool(model.get("byte_fallback"))
        steps = [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")]
        is_spelled, is_before = (
            any(step["type"] == "ByteLevel" for step in flat_steps(fields.get(name), inner))
            for name, inner in steps
        )
        self._is_byte_level = is_spelled or is_before
        self._loaded = loaded
        added = loaded.added_tokens().values()
        self._added = any_of(of.content for of in added if in_text == "control" or not of.special)
        if self._is_byte_level:
            spells_all = all(self._is_whole(BYTE_LETTERS[byte]) for byte in BYTES_OF_UTF8)
        else:
            spells_all = self._takes_bytes and all(map(self._has, map(_byte_token, BYTES_OF_UTF8)))
        self.is_whole = kind in ("BPE", "Unigram") and spells_all
        """True if every text is in its tokens."""
        self._never: bytes | None = None
        """Bytes that are in no token of a byte-level vocabulary, if each of the others is in all of
        its places; None where that has to be seen word by word."""
        if self._is_byte_level and not self.is_whole and not is_spelled:
            names = {*loaded.vocabulary()}
            names.update(BYTE_LETTERS[byte] for of in added for byte in of.content.encode())
            spelled = {*"".join(names)}
            never = [byte for byte, letter in enumerate(BYTE_LETTERS) if letter not in spelled]
            others = (BYTE_LETTERS[byte] for byte in {*BYTES_OF_UTF8} - {*never})
            self._never = bytes(never) if all(map(self._is_whole, others)) else None

    def _is_whole(self, symbol: str) -> bool:
        """Return whether there is a token of a symbol wherever it stands in a word."""
        places = product({"", self._before}, {"", self._after})
        return all(self._has(before + symbol + after) for before, after in places)

    def num_lost(self, texts: pa.LargeStringArray) -> int:
        """Return the number of bytes of texts in no token: by a table if each byte is in all of its
        places or in none, else word by word."""
        if self._never is None:
            return sum(map(self._num_lost_of, texts.to_pylist()))
        if (normalizer := self._library.normalizer) is not None:
            texts = to_texts([normalizer.normalize_str(text) for text in texts.to_pylist()])
        offsets, data = text_buffers(texts)
        of_texts = data[offsets[0] : offsets[-1]].tobytes()
        return len(of_texts) - len(of_texts.translate(None, delete=self._never))

    @cached_property
    def _library(self) -> Any:
        return self._loaded.version_0("gives the words of a text, to count what is lost of it")

    def _num_lost_of(self, text: str) -> int:
        normalizer, pre_tokenizer = self._library.normalizer, self._library.pre_tokenizer
        words: list[str] = []  # that the model is given
        for part in self._added.split(text):
            of_model = part if normalizer is None else normalizer.normalize_str(part)
            split = [] if pre_tokenizer is None else pre_tokenizer.pre_tokenize_str(of_model)
            words += [of_model] if pre_tokenizer is None else [word for word, _ in split]
        lost = [symbol for word in words for symbol in self._lost_of(word)]
        return len(lost) if self._is_byte_level else len("".join(lost).encode())

    def _lost_of(self, word: str) -> Iterator[str]:
        """Yield the symbols of a word that become no token."""
        if self._takes_words and self._has(word):
            return
        for index, symbol in enumerate(word):
            before = self._before if index else ""
            after = self._after if index + 1 == len(word) else ""
            token = before + symbol + after
            of_bytes = map(_byte_token, token.encode())
            if not self._has(token) and not (self._takes_bytes and all(map(self._has, of_bytes))):
                yield symbol


def _byte_token(byte: int) -> str:
    return f"<0x{byte:02X}>"

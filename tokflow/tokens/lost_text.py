"""Text that a tokenizer loses: what its vocabulary has no token for becomes unknown, or nothing."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.store.arrow import to_texts
from tokflow.tokenizers.engines.protocol import InText, any_of, text_buffers
from tokflow.tokenizers.engines.reference import load_tokenizer_json
from tokflow.tokenizers.engines.sentencepiece_ import MODEL_NAME, load_processor
from tokflow.tokenizers.patterns import byte_letters, flat_steps
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, scan_tokenizer_json
from tokflow.tokenizers.vocabulary import id_of_unknown

Count: TypeAlias = Callable[[pa.LargeStringArray], int]
"""Function that counts the bytes of texts that are in no token."""

BYTES_OF_UTF8 = sorted({*range(0xF5)} - {0xC0, 0xC1})
"""All others are in no text."""

LETTERS = byte_letters()


class LostText:
    """Counts of what a tokenizer loses of texts; empty of one that loses nothing."""

    def __init__(self, encoding: Encoding, in_text: InText) -> None:
        unknown, self._dropped = _losses(encoding.tokenizer, in_text)
        # That of EOS or BOS is an error in a text.
        self._unknown = None if unknown in (encoding.eos_id, encoding.bos_id) else unknown
        self.counts: dict[str, int] = {}
        """num_unknown_tokens: those that stand for text without a token of its own. num_lost_bytes:
        UTF-8 of the text, as the tokenizer normalises it, that is in no token."""
        if self._unknown is not None:
            self.counts["num_unknown_tokens"] = 0
        if self._dropped is not None:
            self.counts["num_lost_bytes"] = 0

    def add(self, texts: pa.LargeStringArray, token_ids: npt.NDArray[np.unsignedinteger]) -> None:
        """Count what was lost of the texts that became these tokens."""
        if self._unknown is not None:
            num_unknown = int(np.count_nonzero(token_ids == self._unknown))
            self.counts["num_unknown_tokens"] += num_unknown
        if self._dropped is not None:
            self.counts["num_lost_bytes"] += self._dropped(texts)


@lru_cache(maxsize=4)
def _losses(tokenizer: Tokenizer, in_text: InText) -> tuple[int | None, Count | None]:
    """Return the id of unknown text, and what counts dropped text; None where there can be none."""
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

    def __init__(self, fields: Mapping[str, Any], loaded: Any, in_text: InText) -> None:
        model = fields["model"]
        kind = type(loaded.model).__name__
        self.drops = kind == "BPE" and model.get("unk_token") is None
        """True if what has no token becomes none, without a word; else it becomes unknown."""
        self._has: Callable[[str], bool] = lambda token: loaded.model.token_to_id(token) is not None
        self._before = model.get("continuing_subword_prefix") or ""
        self._after = model.get("end_of_word_suffix") or ""
        self._takes_words = bool(model.get("ignore_merges"))
        self._takes_bytes = bool(model.get("byte_fallback"))
        self._is_spelled = _has_byte_level(fields, "normalizer", "normalizers")
        self._is_byte_level = self._is_spelled or _has_byte_level(
            fields, "pre_tokenizer", "pretokenizers"
        )
        self._normalizer, self._pre_tokenizer = loaded.normalizer, loaded.pre_tokenizer
        added = loaded.get_added_tokens_decoder().values()
        self._added = any_of(of.content for of in added if in_text == "control" or not of.special)
        if self._is_byte_level:
            spells_all = all(self._is_whole(LETTERS[byte]) for byte in BYTES_OF_UTF8)
        else:
            spells_all = self._takes_bytes and all(map(self._has, map(_byte_token, BYTES_OF_UTF8)))
        self.is_whole = kind in ("BPE", "Unigram") and spells_all
        """True if every text is in its tokens."""
        self._never = b""
        """Of byte-level ones: the bytes that are in no token at all."""
        if self._is_byte_level and not self.is_whole:
            names = {*loaded.get_vocab(with_added_tokens=False)}
            names.update(LETTERS[byte] for of in added for byte in of.content.encode())
            spelled = {*"".join(names)}
            letters = enumerate(LETTERS)
            self._never = bytes(byte for byte, letter in letters if letter not in spelled)

    def _is_whole(self, symbol: str) -> bool:
        """Return whether there is a token of a symbol wherever it stands in a word."""
        places = product({"", self._before}, {"", self._after})
        return all(self._has(before + symbol + after) for before, after in places)

    def num_lost(self, texts: pa.LargeStringArray) -> int:
        """Return how many bytes of texts are in no token: by a table where a byte is in all of
        its places or in none, else word by word."""
        if not self._is_by_table:
            return sum(map(self._num_lost_of, texts.to_pylist()))
        if self._normalizer is not None:
            texts = to_texts([self._normalizer.normalize_str(text) for text in texts.to_pylist()])
        offsets, data = text_buffers(texts)
        of_texts = data[offsets[0] : offsets[-1]].tobytes()
        return len(of_texts) - len(of_texts.translate(None, delete=self._never))

    @cached_property
    def _is_by_table(self) -> bool:
        return (
            self._is_byte_level
            and not self._is_spelled
            and all(byte in self._never or self._is_whole(LETTERS[byte]) for byte in BYTES_OF_UTF8)
        )

    def _num_lost_of(self, text: str) -> int:
        words = (word for part in self._added.split(text) for word in self._words(part))
        lost = [symbol for word in words for symbol in self._lost_of(word)]
        return len(lost) if self._is_byte_level else len("".join(lost).encode())

    def _words(self, text: str) -> Iterator[str]:
        """Yield what the model is given."""
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        if self._pre_tokenizer is None:
            yield text
        else:
            yield from (word for word, _ in self._pre_tokenizer.pre_tokenize_str(text))

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


def _has_byte_level(fields: Mapping[str, Any], name: str, inner: str) -> bool:
    return any(step["type"] == "ByteLevel" for step in flat_steps(fields.get(name), inner))


def _byte_token(byte: int) -> str:
    return f"<0x{byte:02X}>"

"""The characters of raw documents that tokens stand for, where a tokenizer normalises the text.

What tokens decode to is the raw text of nearly all documents, which its hash proves. Of the others
the raw file is read again, if it lies where it was, and the text encoded as it was then: the ids
must be those in the store, and the tokenizer's library tells the characters of each. Nothing of a
dataset's own code is run for it.
"""

import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.audit.texts import TokenizedText
from tokflow.documents import Batch, DocumentsConfig, DocumentSource
from tokflow.errors import TokflowError
from tokflow.store.arrow import texts_of
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.encoding import in_text_of
from tokflow.tokenizers.engines import Encoded, open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.loss_mask import TokenChars, TokenPlaces
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.writer import text_hashes


@dataclass(frozen=True, slots=True)
class RawText:
    """A text as it is in the raw file, and the characters that its tokens stand for."""

    text: str
    first: int
    """Tokens of the stored text before the first one of these: 1 behind a BOS."""
    chars: TokenChars
    """Of each token but BOS and EOS, counted in `text`."""

    def between(self, first: int, last: int) -> tuple[int, int]:
        """Return the characters of the stored tokens from `first` to `last`; where these are BOS or
        EOS alone, the place between characters that they are at."""
        some = self.chars[max(0, first - self.first) : max(0, last - self.first)]
        if len(some):
            return int(some[:, 0].min()), int(some[:, 1].max())
        at = 0 if first < self.first or not len(self.chars) else int(self.chars[:, 1].max())
        return at, at


class RawChars:
    """Finds the raw characters of the tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, max_bytes: int | None = None) -> None:
        """`max_bytes`: of raw files that are read; what is behind them is not found."""
        self._tokenizer = tokenizer
        self._bytes_left = max_bytes
        self._readers: dict[Path, _Reader] = {}

    def is_raw(self, text: TokenizedText, decoded: bytes) -> bool:
        """Return whether the UTF-8 that a text's tokens stand for is the text in the raw file."""
        if text.is_cut:
            return self._places.is_lossless
        [found] = text_hashes(texts_of([decoded])).to_pylist()
        return bool(found == text.text_hash)

    def find(self, text: TokenizedText) -> RawText | None:
        """Return the raw text and its characters; None where the raw file is not where it was, or
        another one is, a transform made the text, or the tokenizer tells no places."""
        with suppress(TokflowError, OSError):
            documents = _documents_of(text.shard)
            if documents is None or (batch := self._document(text, documents)) is None:
                return None
            for part in _parts(batch, text):
                encoded, chars = self._encode(part, text.shard, documents)
                found = _aligned(text, encoded.token_ids)
                if found is not None:
                    first, num = found
                    raw = str(part.texts[0].as_py())
                    return RawText(raw, first, _with_marks(raw, chars[:num]))
        return None

    @cached_property
    def _places(self) -> TokenPlaces:
        return TokenPlaces(self._tokenizer)

    def _document(self, text: TokenizedText, documents: DocumentsConfig) -> Batch | None:
        """Return the document of a text as a batch of its own, read from the raw file again."""
        path = text.shard.origins.path_of(text.raw_file, text.shard.stored.run())
        if path is None or not path.is_file():
            return None
        reader = self._readers.get(path)
        if reader is None or not reader.can_reach(text.row):
            if self._bytes_left is not None:
                self._bytes_left -= path.stat().st_size
                if self._bytes_left < 0:
                    return None
            reader = _Reader(path, documents, self._tokenizer)
            self._readers[path] = reader
        found = reader.document(text.row)
        is_it = found is not None and text_hashes(found.texts).to_pylist() == [text.text_hash]
        return found if is_it else None

    def _encode(
        self, batch: Batch, shard: TokenShard, documents: DocumentsConfig
    ) -> tuple[Encoded, TokenChars]:
        special = shard.manifest.config["special_tokens_in_text"]
        in_text = in_text_of(documents, special)
        engine = open_reference(self._tokenizer, in_text=in_text)
        if documents.is_chat:
            return ChatEncoder(engine, self._tokenizer, special).with_chars(batch)
        encoded = engine.encode(batch.texts)
        return encoded, self._places.spans(batch.texts, encoded, in_text=in_text)


class _Reader:
    """Reads documents of a raw file one after another, each batch once."""

    def __init__(self, path: Path, documents: DocumentsConfig, tokenizer: Tokenizer) -> None:
        render = open_renderer(documents, tokenizer)
        self._batches = DocumentSource([path], documents).batches(render=render)
        self._batch: Batch | None = None

    def can_reach(self, row: int) -> bool:
        """Return whether a document is in the batch that was read last, or behind it."""
        return self._batch is None or row >= int(self._batch.rows[0])

    def document(self, row: int) -> Batch | None:
        """Return one document; None where the file has none at that row."""
        while self._batch is None or row > int(self._batch.rows[-1]):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._batch = batch
        index = int(np.searchsorted(self._batch.rows, row))
        return self._batch.slice(index, index + 1) if self._batch.rows[index] == row else None


def _documents_of(shard: TokenShard) -> DocumentsConfig | None:
    """Return how the documents of a shard are read again; None where a transform makes them.

    Limits end the reading and change no row before, and what is bad keeps its row.
    """
    fields = dict(shard.manifest.config["documents"])
    if "transform" in fields:
        return None
    [format_, *others] = fields["format"]
    fields["format"] = "auto" if others else format_
    fields["limit"] = {of: num for of, num in fields["limit"].items() if of == "document_bytes"}
    return DocumentsConfig(**fields, on_bad_document="reject", max_rejects=2**62)


def _parts(batch: Batch, text: TokenizedText) -> Iterator[Batch]:
    """Yield what of a document may be the text: all of it or, where it was cut, the span and, for a
    budget of tokens counts no raw characters, all from its first character on."""
    if not text.is_cut:
        yield batch
        return
    document = str(batch.texts[0].as_py())
    for stop in (text.char_start + text.num_chars, None):
        part = document[text.char_start : stop]
        num_chars = np.array([len(part)], dtype=np.int64)
        yield replace(batch, texts=texts_of([part.encode()]), num_chars=num_chars)


def _aligned(
    text: TokenizedText, token_ids: npt.NDArray[np.unsignedinteger]
) -> tuple[int, int] | None:
    """Return how many tokens come before those of the text itself in the stored ones, and how many
    these are; None where the stored ones are others."""
    has_bos, has_eos = text.may_have_added
    stored = text.token_ids
    for first in dict.fromkeys((int(has_bos), 0)):
        own = stored[first : first + len(token_ids)]
        different = np.flatnonzero(own != token_ids[: len(own)])
        num = int(different[0]) if len(different) else len(own)
        is_whole = num == len(token_ids) or text.is_cut
        if is_whole and len(stored) - first - num <= int(has_eos):
            return first, num
    return None


def _with_marks(text: str, chars: TokenChars) -> TokenChars:
    """Return the characters of tokens with the marks behind them that no token has, for a library
    gives what it composed, such as e and an accent, to the first of them alone."""
    chars = chars.copy()
    edges = np.append(chars[1:, 0], len(text))
    for index in np.flatnonzero(edges > chars[:, 1]).tolist():
        start, stop = chars[index].tolist()
        while start < stop < edges[index] and _is_composed(text[stop]):
            stop += 1
        same = chars[: index + 1]  # pieces of one character have all of it
        same[(same[:, 0] == start) & (same[:, 1] == chars[index, 1]), 1] = stop
    return chars


def _is_composed(char: str) -> bool:
    """Return whether a character may become one with that before it: a mark, or a vowel or final
    consonant of Hangul."""
    return unicodedata.category(char).startswith("M") or "\u1160" <= char <= "\u11ff"

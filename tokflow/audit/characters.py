"""The characters of raw documents that tokens stand for.

What tokens decode to is the raw text of nearly all documents, which its hash proves. Of the others,
which the tokenizer normalised, the raw file is read again, if it lies where it was, and the text
encoded as it was then: the ids must be those in the store, and the tokenizer's library tells the
characters of each. Nothing of a dataset's own code is run for it.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.audit.texts import TokenizedText
from tokflow.audit.token_texts import ChatSpan, chat_spans, pair_spans, spans_of_tokens
from tokflow.documents import Batch, DocumentsConfig, DocumentSource
from tokflow.documents.batch import ParsedBatch
from tokflow.errors import TokflowError
from tokflow.store.tables import texts_of
from tokflow.tokenizers.chat import read_chat
from tokflow.tokenizers.chat.renderer import Renderer, open_renderer
from tokflow.tokenizers.engines import Encoded, ReferenceEngine
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer, in_text_of
from tokflow.tokens import TokenSource
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.loss_mask import TokenChars, TokenPlaces, places_of
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import text_hashes

TOKENS_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class RawText:
    """A text as it is in the raw file, and the characters that its tokens stand for."""

    text: str
    first: int
    """Tokens of the stored text before the first one of these: 1 behind a BOS."""
    chars: TokenChars
    """Characters of each token except BOS and EOS, counted in `text`."""
    spans: Callable[[], list[ChatSpan]] | None = None
    """Of a chat, gives its spans."""

    def between(self, first: int, last: int) -> tuple[int, int]:
        """Return the characters of the stored tokens from `first` to `last`; where these are BOS or
        EOS alone, the place between characters that they are at."""
        some = self.chars[max(0, first - self.first) : max(0, last - self.first)]
        if len(some):
            return int(some[:, 0].min()), int(some[:, 1].max())
        at = 0 if first < self.first or not len(self.chars) else int(self.chars[:, 1].max())
        return at, at


@dataclass(slots=True)
class TextChars:
    """A text, and what of its tokens stands for its characters."""

    text: TokenizedText
    first: int
    """Tokens before the first of the text itself: 1 behind a BOS."""
    stop: int
    """Tokens up to the last of the text itself."""
    space: int = 0
    """1 where its first token begins with a space that the text does not have."""
    is_normalised: bool = False
    """True where the tokens do not stand for the raw text, which cannot be read again."""
    raw: RawText | None = None
    """The raw text where the tokenizer normalised it and the raw file could be read again."""
    counted: tuple[int, int] = (0, 0)
    """A token, and the characters before it: those that were counted last."""


class Characters:
    """Finds the characters that tokens of one tokenizer stand for.

    Counted by the bytes of the tokens before them, so that those before any token of a long
    document are a sum; where tokens are no pieces of the text, by what those before them are
    decoded to. Where that is not the raw text, the raw file is read again.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: ReferenceEngine,
        bytes_of: Sequence[bytes | None] | None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        """`bytes_of`: as `token_bytes`. `max_bytes`: of raw files that are read; what is behind
        them is not found."""
        self._tokenizer, self._engine, self._bytes = tokenizer, engine, bytes_of
        self._special = {tokenizer.eos_id, tokenizer.bos_id} - {None}
        tokens = [token or b"" for token in bytes_of or ()]
        begins = np.frombuffer(b"".join(tokens), np.uint8) & 0xC0 != 0x80
        ends = np.cumsum([0, *map(len, tokens)])
        self._counts = np.diff(np.append(0, np.cumsum(begins))[ends])
        """The code points that begin in each token."""
        self._bytes_left = max_bytes
        self._readers: dict[Path, _Reader] = {}
        self._engines: dict[tuple[str, str], tuple[ReferenceEngine, ChatEncoder]] = {}
        self._last_chat: tuple[tuple[str, int], RawText | None, list[ChatSpan]] | None = None

    def of(self, text: TokenizedText) -> TextChars:
        """Return a text without the BOS and EOS that were put around it.

        A text may hold both itself, as chats do: what is left has as many characters as the text.
        Where BOS and EOS are one id, and a text begins or ends with it, the tokens do not tell
        which of two is its own: the first is taken for that.
        """
        # Read once, which of a large file at a URL is a request.
        text = replace(text, source=TokenSource((text.token_ids,)), token_start=0)
        end = text.num_tokens
        first, last = text.between(0, 1).tolist(), text.between(max(end - 1, 0), end).tolist()
        has_bos, has_eos = text.may_have_added
        begin = int(has_bos and not self._special.isdisjoint(first))
        stop = end - int(has_eos and end > begin and not self._special.isdisjoint(last))
        tries = [(begin, stop)]
        if text.may_hold_special:
            tries = [(0, end), (0, stop), (begin, end), (begin, stop)]
        for inner in tries:
            space = self._num_chars(text, *inner) - text.num_chars
            if space in (0, 1):
                decoded = self._decoded(text, *inner)
                is_alike = not space or decoded.startswith(b" ")
                if is_alike and self._is_raw(text, decoded[space:]):
                    return TextChars(text, *inner, space)
        raw = self._find(text)
        if raw is None:
            return TextChars(text, begin, stop, is_normalised=True)
        return TextChars(text, raw.first, raw.first + len(raw.chars), raw=raw)

    def before(self, found: TextChars, token: int) -> int:
        """Return how many characters of a text begin before a token of it."""
        token = min(max(token, found.first), found.stop)
        at, chars = found.counted
        if self._bytes is None or not found.first <= at <= token:
            at, chars = found.first, 0
        chars += self._num_chars(found.text, at, token)
        found.counted = token, chars
        return chars - found.space * (token > found.first)

    def between(self, found: TextChars, first: int, last: int) -> tuple[int, int]:
        """Return the characters of the tokens from `first` to `last`, all of one of which they are
        a piece; of BOS and EOS alone, the place between characters that they are at."""
        if found.raw is not None:
            return found.raw.between(first, last)
        left, right = self.before(found, first), self.before(found, last)
        start = max(first, found.first)
        token = self._decoded(found.text, start, min(start + 1, last, found.stop))
        is_rest_of_one = bool(token) and token[0] & 0xC0 == 0x80
        return left - is_rest_of_one, right

    def shown(self, found: TextChars) -> str:
        """Return the text whose characters are counted: the raw one, if it is known."""
        if found.raw is not None:
            return found.raw.text
        decoded = self._decoded(found.text, found.first, found.stop)
        return decoded[found.space :].decode(errors="replace")

    def _num_chars(self, text: TokenizedText, start: int, stop: int) -> int:
        if self._bytes is None:
            return len(self._decoded(text, start, stop).decode())
        return sum(
            int(self._counts[text.between(at, min(at + TOKENS_AT_ONCE, stop))].sum())
            for at in range(start, stop, TOKENS_AT_ONCE)
        )

    def _decoded(self, text: TokenizedText, start: int, stop: int) -> bytes:
        """Return what some tokens of a text stand for, in UTF-8."""
        token_ids = text.between(start, stop).tolist()
        if self._bytes is None:
            return self._engine.decode(token_ids).encode()
        return b"".join([self._bytes[token_id] or b"" for token_id in token_ids])

    def _is_raw(self, text: TokenizedText, decoded: bytes) -> bool:
        """Return whether the UTF-8 that a text's tokens stand for is the text in the raw file."""
        if text.is_cut:
            return self._places.is_lossless
        [found] = text_hashes(texts_of([decoded])).to_pylist()
        return bool(found == text.text_hash)

    def _find(self, text: TokenizedText) -> RawText | None:
        """Return the raw text and its characters; None where the raw file is not where it was, or
        another one is, a transform made the text, or the tokenizer gives no character offsets."""
        with suppress(TokflowError, OSError):
            documents = _documents_of(text.shard)
            if documents is None or (reader := self._reader(text, documents)) is None:
                return None
            if (read := reader.document(text.row)) is None:
                return None
            record, batch = read
            if text_hashes(batch.texts).to_pylist() != [text.text_hash]:
                return None
            for part in _parts(batch, text):
                encoded, chars = self._encode(part, text.shard, documents, reader.render)
                found = _aligned(text, encoded.token_ids)
                if found is not None:
                    first, num = found
                    raw = str(part.texts[0].as_py())
                    of_chat = partial(reader.spans, record) if documents.is_chat else None
                    return RawText(raw, first, _with_marks(raw, chars[:num]), of_chat)
        return None

    def spans_of_chat(
        self, text: TokenizedText, first: int, last: int
    ) -> list[tuple[int, ChatSpan]]:
        """Return the tokens of a chat from `first` to `last` by whose words they are, and whether
        and why they are supervised: how many, and the span. Where the chat cannot be read again,
        only whether is known; of other documents nothing."""
        if text.masks is None:
            return []
        key = text.raw_file, text.row
        if self._last_chat is None or self._last_chat[0] != key:
            raw = self._find(text)
            self._last_chat = key, raw, raw.spans() if raw and raw.spans else []
        _, raw, spans = self._last_chat
        chars = np.full(text.num_tokens, -1)
        if raw is not None:
            chars[raw.first : raw.first + len(raw.chars)] = raw.chars[:, 0]
        mask = text.masks.read(text.token_start + first, text.token_start + last)
        return [*spans_of_tokens(spans, chars[first:last], mask)]

    @property
    def _places(self) -> TokenPlaces:
        return places_of(self._tokenizer)

    def _reader(self, text: TokenizedText, documents: DocumentsConfig) -> "_Reader | None":
        """Return what reads the raw file of a text again; None where it is not there."""
        path = text.shard.origins.path_of(text.raw_file, text.shard.stored.run())
        if path is None or not path.is_file():
            return None
        reader = self._readers.get(path)
        if reader is None or text.row < reader.first_row:
            if self._bytes_left is not None:
                self._bytes_left -= path.stat().st_size
                if self._bytes_left < 0:
                    return None
            reader = _Reader(path, documents, open_renderer(documents, self._tokenizer))
            self._readers[path] = reader
        return reader

    def _encode(
        self,
        batch: Batch,
        shard: TokenShard,
        documents: DocumentsConfig,
        render: Renderer | None,
    ) -> tuple[Encoded, TokenChars]:
        special = shard.manifest.recipe.config["special_tokens_in_text"]
        in_text = in_text_of(documents, special)
        key = special, documents.model_dump_json()
        if key not in self._engines:  # which takes as long as many documents
            engine = open_reference(self._tokenizer, in_text=in_text)
            chats = ChatEncoder(engine, self._tokenizer, special, render)
            self._engines[key] = engine, chats
        engine, chats = self._engines[key]
        if documents.is_chat:
            return chats.with_chars(batch)
        encoded = engine.encode(batch.texts)
        return encoded, self._places.spans(batch.texts, encoded, in_text=in_text)


def first_chat(path: Path, documents: DocumentsConfig, tokenizer: Tokenizer) -> list[ChatSpan]:
    """Return the spans of the first chat of a raw file; none where it has no chat.

    Raises: TokflowError where it cannot be read, or the template does not write it.
    """
    limit = documents.limit.model_copy(update={"documents": 1})
    source = DocumentSource([path], documents.model_copy(update={"limit": limit}))
    render = open_renderer(documents, tokenizer)
    if (batch := next(source.batches(batch_bytes=1, render=render), None)) is None:
        return []
    reader = _Reader(path, documents, render)
    read = reader.document(int(batch.rows[0]))
    return reader.spans(read[0]) if read else []


class _Reader:
    """Reads documents of a raw file one after another, each batch once."""

    def __init__(self, path: Path, documents: DocumentsConfig, render: Renderer | None) -> None:
        self._documents, self.render = documents, render
        as_it_is = (lambda found: found) if documents.is_rendered else None
        self._batches = DocumentSource([path], documents).batches(render=as_it_is)
        self._batch: Batch | None = None
        self.first_row = 0
        """The first row of the batch that was read last; those before it are found no more."""

    def document(self, row: int) -> tuple[Batch, Batch] | None:
        """Return one record and the document that it is, each as a batch; None where the file has
        none at that row."""
        if (record := self._record(row)) is None:
            return None
        return record, self.render(ParsedBatch(record)).batch if self.render else record

    def spans(self, record: Batch) -> list[ChatSpan]:
        """Return the spans of a record that is a chat."""
        text = str(record.texts[0].as_py())
        if self.render is None:
            return pair_spans(text, record.loss_spans.document(0) if record.loss_spans else [])
        chat = read_chat(text.encode(), self._documents)
        return chat_spans(chat, self.render.render(chat), self._documents)

    def _record(self, row: int) -> Batch | None:
        while self._batch is None or row > int(self._batch.rows[-1]):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._batch, self.first_row = batch, int(batch.rows[0])
        index = int(np.searchsorted(self._batch.rows, row))
        return self._batch.slice(index, index + 1) if self._batch.rows[index] == row else None


def _documents_of(shard: TokenShard) -> DocumentsConfig | None:
    """Return how the documents of a shard are read again; None where a transform makes them.

    Limits end the reading and change no row before, and what is bad keeps its row.
    """
    fields = dict(shard.manifest.recipe.config["documents"])
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
    these are; None where the stored ones differ."""
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
        # A mark, or a vowel or final consonant of Hangul, may become one with what is before it.
        while start < stop < edges[index] and (
            unicodedata.category(text[stop]).startswith("M") or "\u1160" <= text[stop] <= "\u11ff"
        ):
            stop += 1
        same = chars[: index + 1]  # pieces of one character have all of it
        same[(same[:, 0] == start) & (same[:, 1] == chars[index, 1]), 1] = stop
    return chars

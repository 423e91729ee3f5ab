"""Documents -> token ids: texts by an engine, chats with a loss mask; special tokens counted."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokflow.documents import Batch, DocumentsConfig, DocumentSource
from tokflow.documents.source import Encode
from tokflow.errors import BadDocumentError
from tokflow.tokenizers.engines import Encoded, GatedEngine, open_engine
from tokflow.tokenizers.engines.protocol import text_buffers
from tokflow.tokenizers.tokenizer import Encoding, in_text_of
from tokflow.tokens.bos_eos import ChatMarks, TokenBatch, add_bos_eos
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.lost_text import LostText


def engine_for(encoding: Encoding, documents: DocumentsConfig) -> GatedEngine:
    """Return the engine of an encoding for the text of documents, kept for the next call.

    Raises: TokenizerError; CorruptOutputError where a file of the tokenizer is damaged.
    """
    in_text = in_text_of(documents, encoding.config.special_tokens_in_text)
    tokenizer = encoding.tokenizer
    tokenizer.ask_for_files()  # of which an engine may have been made before
    return open_engine(tokenizer, choice=encoding.config.engine, in_text=in_text)


class DocumentEncoder:
    """The engine of the documents of a source, with a count of the special tokens they spell."""

    def __init__(
        self, source: DocumentSource, documents: DocumentsConfig, encoding: Encoding
    ) -> None:
        self._source = source
        self.encoding = encoding
        self.engine = engine_for(encoding, documents)
        how = encoding.tokenizer, encoding.config.special_tokens_in_text
        self._chats = ChatEncoder(self.engine, *how) if documents.is_chat else None
        self._is_limited = documents.limit.tokens is not None
        self._counter = SpecialTokenCounter(encoding.tokenizer.special_tokens)
        self.lost = LostText(encoding, in_text_of(documents, how[1]))
        self.num_special_tokens = 0
        """Special tokens that texts spell, so far."""

    def count(self, batch: Batch) -> Batch:
        """Return the batch, the special tokens that it spells counted.

        Raises: BadDocumentError where a special token is spelt and that is an error.
        """
        spelt = self._counter.in_batch(batch)
        self.num_special_tokens += sum(spelt.values())
        if spelt and self.encoding.config.special_tokens_in_text == "error":
            index, token = min(spelt)
            path, row = self._source.place(batch, index)
            raise BadDocumentError(
                where=self.name_in(batch)(index),
                expected="no special token spelt in the text",
                found=repr(token),
                remedy="set tokenizer.special_tokens_in_text: ordinary to encode it as "
                "plain text, or control to let it become the control token",
                path=path,
                row=row,
            )
        return batch

    def encode(self, batch: Batch) -> tuple[Encoded, ChatMarks | None]:
        """Return the tokens of a batch, and of chats what is known of them.

        Raises: TokenizerError; EngineDiffersError.
        """
        if self._chats is None:
            return self.engine.encode(batch.texts), None
        return self._chats.encode(batch, self.name_in(batch))

    @property
    def for_limit(self) -> Encode | None:
        """What a limit of tokens is counted with; None where there is no such limit."""
        if not self._is_limited:
            return None
        return lambda batch: replace(batch, tokens=self.ended(batch, *self.encode(batch)))

    def ended(self, batch: Batch, tokens: Encoded, chat: ChatMarks | None) -> TokenBatch:
        """Return the tokens of a batch with BOS and EOS. Raises: as `add_bos_eos`."""
        return add_bos_eos(tokens, self.encoding, chat=chat, name=self.name_in(batch))

    def name_in(self, batch: Batch) -> Callable[[int], str]:
        """Return what errors call a document of the batch by its index."""
        return lambda index: "{}: document {:,}".format(*self._source.place(batch, index))


LOOKED_AT_BYTES = 256 * 1024
"""Looked at once, as much as a core's cache holds; a text may be any number of times as long."""


class SpecialTokenCounter:
    """Counts where the texts spell a special token; the leftmost and longest spelling wins."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        names = sorted((name.encode() for name in special_tokens if name), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, names))) if names else None
        self._shared = os.path.commonprefix(names) or b""  # noqa: RUF071  # letters, not folders

    def in_batch(self, batch: Batch) -> dict[tuple[int, str], int]:
        """Return (index of the document, name) to number of times; empty where none is spelt.

        Of what a chat template wrote, its own special tokens are left out.
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
    """Return whether the bytes hold a part that all names share, looking at a little at a time.

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

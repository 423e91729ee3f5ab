"""Is a token shard what its raw file says: read the documents again and compare."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tokflow.documents import Batch, DocumentsConfig, read_documents
from tokflow.raw import RawFile, check_unchanged
from tokflow.store.arrow import to_numpy
from tokflow.store.manifest import read_run
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.encoding import Encoding
from tokflow.tokenizers.engines import ReferenceEngine, open_reference
from tokflow.tokens.bos_eos import add_bos_eos
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.document_table import text_hashes
from tokflow.tokens.shard import TokenShard

LOSSLESS_KINDS = frozenset({"bytes", "tiktoken", "trained"})
"""Kinds of tokenizers whose decoded tokens are the very text; others may normalise it."""

MAX_SAMPLE_CHARS = 200_000
"""A longer document is compared by its hash alone: the reference would take seconds for it."""


def verify_against_raw(
    raw: RawFile,
    shard: TokenShard,
    documents: DocumentsConfig,
    encoding: Encoding,
    *,
    num_samples: int = 64,
    max_characters: int | None = None,
    on_difference: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Return where the shard differs from the raw file that it was made from.

    Every document read has its row, length and text hash compared. `num_samples` of them, spread
    evenly and the same each time, are tokenized by the reference engine and compared token by
    token, and, where the tokenizer loses nothing, decoded and compared with the text. Stops
    reading after `max_characters`; without it, the whole file is read. `on_difference` hears of
    tokens that are not the reference's where gigatoken made the shard.
    """
    render = open_renderer(documents, encoding.tokenizer)
    reference = open_reference(encoding.tokenizer, in_text=encoding.in_text(documents))
    check = _Check(
        shard, encoding, reference, num_samples=num_samples, max_characters=max_characters
    )
    problems: list[str] = []
    for batch in read_documents(raw.path, documents, render=render):
        problems += check.problems(batch)
        if problems or (check.is_done and max_characters is not None):
            break
    check_unchanged(raw)
    if check.difference and read_run(shard.folder).get("engine") == "gigatoken":
        on_difference(check.difference)
    if not problems and not check.is_done:
        problems.append(
            f"{shard.folder}: expected the {check.num_read:,} documents of the raw file, found "
            f"{shard.manifest.counts['num_documents']:,}"
        )
    return problems


class _Check:
    """Goes through the documents of a file beside those of its shard."""

    def __init__(
        self,
        shard: TokenShard,
        encoding: Encoding,
        reference: ReferenceEngine,
        *,
        num_samples: int,
        max_characters: int | None,
    ) -> None:
        self._shard = shard
        self._encoding = encoding
        table = shard.documents()
        names = ("row", "num_chars", "token_offset", "num_tokens")
        self._columns = {name: to_numpy(table[name]) for name in names}
        self._hashes = table["text_hash"].combine_chunks()
        self._token_ids = shard.token_ids()
        self._end = _end(self._columns["num_chars"], max_characters)
        self._samples = np.unique(
            np.linspace(0, self._end - 1, num=min(num_samples, self._end)).astype(np.int64)
        )
        self._loss_mask = shard.loss_mask() if shard.has_loss_mask else None
        self._reference = reference
        self._chats = ChatEncoder(reference, encoding) if shard.has_loss_mask else None
        self.num_read = 0
        self.difference: str | None = None
        """The last problem that was one of tokens which are not the reference's."""

    @property
    def is_done(self) -> bool:
        """Whether every document that was asked for has been compared."""
        return self.num_read >= self._end

    def problems(self, batch: Batch) -> Iterator[str]:
        """Yield the first difference in `batch`."""
        first, self.num_read = self.num_read, self.num_read + len(batch.rows)
        last = min(self.num_read, len(self._columns["row"]))
        if self.num_read > last:
            yield f"{self._shard.folder}: expected all documents of the raw file, found {last:,}"
            return
        hashes = text_hashes(batch.texts)
        for name, expected, found in (
            ("row", batch.rows, self._columns["row"][first:last]),
            ("num_chars", batch.num_chars, self._columns["num_chars"][first:last]),
        ):
            if len(wrong := np.flatnonzero(expected != found)):
                index = int(wrong[0])
                yield (
                    f"{self._shard.folder}: document {first + index:,}: expected {name} "
                    f"{expected[index]:,} as in the raw file, found {found[index]:,}"
                )
                return
        if not hashes.equals(self._hashes.slice(first, last - first)):
            yield f"{self._shard.folder}: documents {first:,} to {last:,}: the text is not the same"
            return
        start, stop = np.searchsorted(self._samples, [first, last])
        for document in self._samples[start:stop].tolist():
            if self._columns["num_chars"][document] <= MAX_SAMPLE_CHARS:
                index = document - first
                yield from self._token_problems(document, batch.slice(index, index + 1))

    def _token_problems(self, document: int, batch: Batch) -> Iterator[str]:
        row = int(self._columns["row"][document])
        where = f"{self._shard.manifest.partition}:{row}"
        start = int(self._columns["token_offset"][document])
        stop = start + int(self._columns["num_tokens"][document])
        found = self._token_ids[start:stop]
        chat = None
        if self._chats is None:
            encoded = self._reference.encode(batch.texts)
        else:
            encoded, chat = self._chats.encode(batch)
        expected = add_bos_eos(encoded, self._encoding, chat=chat)
        if not np.array_equal(expected.token_ids, found):
            self.difference = (
                f"{where}: expected the tokens {expected.token_ids[:8].tolist()} … of "
                f"{self._reference.name}, found {found[:8].tolist()} …"
            )
            yield self.difference
        elif self._encoding.tokenizer.kind in LOSSLESS_KINDS:
            decoded = self._reference.decode(encoded.token_ids.tolist())
            if decoded != batch.texts[0].as_py():
                yield f"{where}: expected its text when decoded, found {decoded[:40]!r} …"
        mask = None if self._loss_mask is None else self._loss_mask[start:stop]
        if (mask is None) != (expected.loss_mask is None) or (
            mask is not None
            and expected.loss_mask is not None
            and not np.array_equal(mask, expected.loss_mask)
        ):
            yield f"{where}: expected the loss mask of its loss spans, found another"


def _end(num_chars: npt.NDArray[np.int64], max_characters: int | None) -> int:
    """Return how many documents to read: all, or up to the one that reaches the limit."""
    if max_characters is None:
        return len(num_chars)
    return min(len(num_chars), int(np.searchsorted(np.cumsum(num_chars), max_characters)) + 1)

"""Documents -> token ids, without BOS and EOS: texts by an engine, chats with a loss mask."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

from tokflow.documents import Batch, DocumentsConfig
from tokflow.documents.ranges import Range, rows_before
from tokflow.errors import BadDocumentError
from tokflow.store.integrity import check_files
from tokflow.tokenizers.encoding import Encoding
from tokflow.tokenizers.engines import Encoded, GatedEngine, open_engine
from tokflow.tokens.bos_eos import ChatMarks
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.special_counts import SpecialTokenCounter


def engine_for(encoding: Encoding, documents: DocumentsConfig) -> GatedEngine:
    """Return the engine of an encoding for the text of documents, kept for the next call.

    Raises: TokenizerError; CorruptOutputError where a file of the tokenizer is damaged.
    """
    check_files(encoding.tokenizer)
    in_text = encoding.in_text(documents)
    return open_engine(encoding.tokenizer, choice=encoding.config.engine, in_text=in_text)


class DocumentEncoder:
    """The engine of one raw file's documents, or of those in a range of it, with a count of the
    special tokens they spell."""

    def __init__(
        self,
        path: Path,
        documents: DocumentsConfig,
        encoding: Encoding,
        within: Range | None = None,
    ) -> None:
        self._path, self._documents, self._within = path, documents, within
        self.encoding = encoding
        self.engine = engine_for(encoding, documents)
        self._chats = ChatEncoder(self.engine, encoding) if documents.is_chat else None
        self._counter = SpecialTokenCounter(encoding.tokenizer.special_tokens)
        self.num_special_tokens = 0
        """Special tokens that texts spell, so far."""

    def counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches as they come, the special tokens that they spell counted.

        Raises: BadDocumentError where a special token is spelt and that is an error.
        """
        for batch in batches:
            self._count(batch)
            yield batch

    def _count(self, batch: Batch) -> None:
        spelt = self._counter.in_batch(batch)
        self.num_special_tokens += sum(spelt.values())
        if spelt and self.encoding.config.special_tokens_in_text == "error":
            index, token = min(spelt)
            raise BadDocumentError(
                where=self.name_in(batch)(index),
                expected="no special token spelt in the text",
                found=repr(token),
                remedy="set tokenizer.special_tokens_in_text: ordinary to encode it as "
                "plain text, or control to let it become the control token",
                path=self._path,
                row=self._row(batch, index),
            )

    def encode(self, batch: Batch) -> tuple[Encoded, ChatMarks | None]:
        """Return the tokens of a batch, and of chats what is known of them.

        Raises: TokenizerError; EngineDiffersError.
        """
        if self._chats is None:
            return self.engine.encode(batch.texts), None
        return self._chats.encode(batch, self.name_in(batch))

    def name_in(self, batch: Batch) -> Callable[[int], str]:
        """Return what errors call a document of the batch by its index."""
        return lambda index: f"{self._path}: document {self._row(batch, index):,}"

    def _row(self, batch: Batch, index: int) -> int:
        return int(batch.rows[index]) + self._rows_before

    @cached_property
    def _rows_before(self) -> int:
        """Rows of the file before the range, which only an error asks for."""
        if self._within is None:
            return 0
        return rows_before(self._path, self._documents, self._within)

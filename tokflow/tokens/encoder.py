"""Documents -> token ids, without BOS and EOS: texts by an engine, chats with a loss mask."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tokflow.documents import Batch, DocumentsConfig, DocumentSource
from tokflow.documents.limits import Encode
from tokflow.errors import BadDocumentError
from tokflow.tokenizers.encoding import Encoding
from tokflow.tokenizers.engines import Encoded, GatedEngine, open_engine
from tokflow.tokens.bos_eos import ChatMarks, TokenBatch, add_bos_eos
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.lost_text import LostText
from tokflow.tokens.special_counts import SpecialTokenCounter


def engine_for(encoding: Encoding, documents: DocumentsConfig) -> GatedEngine:
    """Return the engine of an encoding for the text of documents, kept for the next call.

    Raises: TokenizerError; CorruptOutputError where a file of the tokenizer is damaged.
    """
    in_text, tokenizer = encoding.in_text(documents), encoding.tokenizer
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
        self.lost = LostText(encoding, encoding.in_text(documents))
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
            path, row = self._place(batch, index)
            raise BadDocumentError(
                where=self.name_in(batch)(index),
                expected="no special token spelt in the text",
                found=repr(token),
                remedy="set tokenizer.special_tokens_in_text: ordinary to encode it as "
                "plain text, or control to let it become the control token",
                path=path,
                row=row,
            )

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
        return self._with_tokens if self._is_limited else None

    def _with_tokens(self, batch: Batch) -> Batch:
        """Return the batch with its tokens, BOS and EOS added.

        Raises: as `encode` and `add_bos_eos`.
        """
        return replace(batch, tokens=self.ended(batch, *self.encode(batch)))

    def ended(self, batch: Batch, tokens: Encoded, chat: ChatMarks | None) -> TokenBatch:
        """Return the tokens of a batch with BOS and EOS. Raises: as `add_bos_eos`."""
        return add_bos_eos(tokens, self.encoding, chat=chat, name=self.name_in(batch))

    def name_in(self, batch: Batch) -> Callable[[int], str]:
        """Return what errors call a document of the batch by its index."""
        return lambda index: "{}: document {:,}".format(*self._place(batch, index))

    def _place(self, batch: Batch, index: int) -> tuple[Path, int]:
        return self._source.place(batch, index)

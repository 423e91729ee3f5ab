"""The texts of a part, read again from the raw files, for the formats that hold text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tokflow.documents import DocumentsConfig, read_documents
from tokflow.raw import RawFile, check_unchanged
from tokflow.split.spans import Split
from tokflow.store.arrow import to_numpy, to_texts
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSource:
    """What the texts of documents are read from."""

    raw_files: Mapping[str, RawFile]
    """By partition key."""
    documents: DocumentsConfig
    tokenizer: Tokenizer
    """Knows the chat template that makes a text of messages."""

    def texts(self, split: Split, part: str) -> Iterator[pa.Array]:
        """Yield the texts that one file has in a part, in file order, some megabytes at a time.

        Documents without text are among them; of a cut document it is the piece.

        Raises: RawFileError where the file changes meanwhile.
        """
        raw = self.raw_files[str(split.manifest.partition)]
        spans = split.span_table(part)
        columns = [
            to_numpy(spans[name]).tolist()
            for name in ("document", "num_documents", "char_start", "num_chars", "is_cut")
        ]
        waiting = list(zip(*columns, strict=True))[::-1]
        render = open_renderer(self.documents, self.tokenizer)
        first = 0
        for batch in read_documents(raw.path, self.documents, render=render):
            last = first + len(batch.texts)
            while waiting and waiting[-1][0] < last:
                document, num_documents, char_start, num_chars, is_cut = waiting.pop()
                if is_cut:
                    text = batch.texts[document - first].as_py()
                    yield to_texts([text[char_start : char_start + num_chars]])
                    continue
                here = min(document + num_documents, last) - document
                yield batch.texts.slice(document - first, here)
                if here < num_documents:
                    waiting.append((last, num_documents - here, 0, 0, False))
            if not waiting:
                break
            first = last
        check_unchanged(raw)

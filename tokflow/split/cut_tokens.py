"""cut_tokens.bin of a split: the tokens of cut documents, each span encoded by itself."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.raw import RawPartition
from tokflow.split.rule import NO_PART, FileSpans
from tokflow.store.tables import to_texts
from tokflow.tokenizers.tokenizer import Encoding
from tokflow.tokens.bos_eos import add_bos_eos
from tokflow.tokens.encoder import DocumentEncoder, engine_for
from tokflow.tokens.stage import BATCH_BYTES

CUT_TOKENS_NAME = "cut_tokens.bin"

CUT_LOSS_MASK_NAME = "cut_loss_mask.bin"
"""Loss mask of the cut_tokens.bin of a mixture of chats."""

CutEncoder = Callable[[FileSpans, Path], npt.NDArray[np.int64]]
"""Writes the tokens of cut spans into a folder and counts them, as `write_cut_tokens` does."""


def write_cut_tokens(
    spans: FileSpans,
    folder: Path,
    *,
    raw: RawPartition,
    documents: DocumentsConfig,
    encoding: Encoding,
) -> npt.NDArray[np.int64]:
    """Write the tokens of the cut spans that parts take, end to end, and count those of all.

    Returns the tokens of each span, shape (num_spans,): 0 for one that is not cut. Each span has
    the tokens of the reference on its text alone. One that no part takes is encoded to be counted.
    Memory is that of the longest document that is cut, as a string too, and of a batch.

    Raises: RawFileError, TokenizerError; EngineDiffersError where gigatoken turns out to be wrong
    on a span; CorruptOutputError where a file of the tokenizer is damaged.
    """
    num_tokens = np.zeros(len(spans.part), dtype=np.int64)
    engine = engine_for(encoding, documents)
    with (folder / CUT_TOKENS_NAME).open("wb") as file:
        for name, ordinals, texts in _texts_of_cut_spans(spans, raw, documents, encoding):
            tokens = add_bos_eos(engine.encode(texts), encoding, name=_called(name))
            num_tokens[ordinals] = tokens.num_tokens
            is_taken = np.repeat(spans.part[ordinals] != NO_PART, tokens.num_tokens)
            tokens.token_ids[is_taken].tofile(file)
    raw.check_unchanged()
    return num_tokens


def _called(name: str) -> Callable[[int], str]:
    return lambda _: name


def _texts_of_cut_spans(
    spans: FileSpans, raw: RawPartition, documents: DocumentsConfig, encoding: Encoding
) -> Iterator[tuple[str, npt.NDArray[np.int64], pa.LargeStringArray]]:
    """Yield ordinals of cut spans and their texts, in order: those of one document, which errors
    call by the name before them, that begin in the same BATCH_BYTES of its characters. No document
    is read behind the last that is cut."""
    cut = np.flatnonzero(spans.is_cut)
    document_of = spans.document[cut]
    first = 0
    source = DocumentSource(raw.paths, documents)
    # Which documents of a group's later files there are depends on the limit of those before.
    encode = DocumentEncoder(source, documents, encoding).for_limit if raw.is_group else None
    for batch in source.batches(encode=encode):
        is_in_batch = (first <= document_of) & (document_of < first + len(batch.rows))
        for document in np.unique(document_of[is_in_batch]).tolist():
            ordinals = cut[document_of == document]
            index = document - first
            name = "{}: a span of document {:,}".format(*source.place(batch, index))
            text = batch.texts[index].as_py()
            batch_of = spans.char_start[ordinals] // BATCH_BYTES
            for some in np.split(ordinals, np.flatnonzero(np.diff(batch_of)) + 1):
                of_spans = zip(spans.char_start[some], spans.num_chars[some], strict=True)
                yield name, some, to_texts([text[start : start + size] for start, size in of_spans])
        first += len(batch.rows)
        if first > document_of[-1]:
            return

"""cut_tokens.bin of a split: the tokens of documents that are cut, each piece encoded by itself."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import DocumentsConfig, read_documents
from tokflow.raw import RawFile, check_unchanged
from tokflow.split.rule import NO_PART, Pieces
from tokflow.tokenizers.encoding import Encoding
from tokflow.tokenizers.engines.protocol import text_buffers
from tokflow.tokens.bos_eos import add_bos_eos
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.shard import BATCH_BYTES

CUT_TOKENS_NAME = "cut_tokens.bin"


def write_cut_tokens(
    pieces: Pieces,
    raw: RawFile,
    documents: DocumentsConfig,
    encoding: Encoding,
    folder: Path,
) -> npt.NDArray[np.int64]:
    """Write the tokens of the cut pieces that parts take, end to end, and count those of all.

    Returns the tokens of each piece, shape (num_pieces,): 0 for one that is not cut. Each piece
    has the tokens of the reference on its text alone. A piece that no part takes is encoded to be
    counted. Without a cut piece nothing is read or written. Memory is that of the longest
    document that is cut, and of a batch.

    Raises: RawFileError, TokenizerError; EngineDiffersError where gigatoken turns out to be wrong
    on a piece; CorruptOutputError where a file of the tokenizer is damaged.
    """
    num_tokens = np.zeros(len(pieces.part), dtype=np.int64)
    if not pieces.is_cut.any():
        return num_tokens

    engine = engine_for(encoding, documents)
    with (folder / CUT_TOKENS_NAME).open("wb") as file:
        for ordinals, texts in _texts_of_cut_pieces(pieces, raw, documents):
            name = partial(_name, raw, pieces.document[ordinals])
            tokens = add_bos_eos(engine.encode(texts), encoding, name=name)
            num_tokens[ordinals] = tokens.num_tokens
            is_taken = np.repeat(pieces.part[ordinals] != NO_PART, tokens.num_tokens)
            tokens.token_ids[is_taken].tofile(file)
    check_unchanged(raw)
    return num_tokens


def _name(raw: RawFile, documents: npt.NDArray[np.int64], index: int) -> str:
    return f"{raw.path}: a piece of document {documents[index]:,}"


def _texts_of_cut_pieces(
    pieces: Pieces, raw: RawFile, documents: DocumentsConfig
) -> Iterator[tuple[npt.NDArray[np.int64], pa.LargeStringArray]]:
    """Yield ordinals of cut pieces and their texts, in order, about BATCH_BYTES of one document at
    a time or one longer piece; reads no further than the last."""
    cut = np.flatnonzero(pieces.is_cut)
    document_of = pieces.document[cut]
    first = 0
    for batch in read_documents(raw.path, documents):
        is_in_batch = (first <= document_of) & (document_of < first + len(batch.rows))
        for document in np.unique(document_of[is_in_batch]).tolist():
            ordinals = cut[document_of == document]
            text = batch.texts.slice(document - first, 1)
            yield from _batches(ordinals, _cut_text(text, pieces.char_start[ordinals]))
        first += len(batch.rows)
        if first > document_of[-1]:
            return


def _cut_text(text: pa.LargeStringArray, char_starts: npt.NDArray[np.int64]) -> pa.LargeStringArray:
    """Return the pieces of one text, from each code point to the next, without a copy of it."""
    offsets, data = text_buffers(text)
    start, stop = offsets.tolist()
    byte_starts = start + _bytes_before(data[start:stop], char_starts)
    bounds = pa.py_buffer(np.append(byte_starts, stop))
    return pa.LargeStringArray.from_buffers(len(char_starts), bounds, pa.py_buffer(data))


def _bytes_before(
    text: npt.NDArray[np.uint8], chars: npt.NDArray[np.int64], block_bytes: int = 1_000_000
) -> npt.NDArray[np.int64]:
    """Return at which bytes of UTF-8 some code points begin, which are given in their order."""
    found = []
    num_chars = 0
    for start in range(0, len(text), block_bytes):
        is_first = text[start : start + block_bytes].view(np.int8) >= -64  # not 0b10xxxxxx
        wanted = chars[np.searchsorted(chars, num_chars) :] - num_chars
        num_in_block = int(np.count_nonzero(is_first))
        wanted = wanted[: np.searchsorted(wanted, num_in_block)]
        if len(wanted):
            found.append(start + np.flatnonzero(is_first)[wanted])
        num_chars += num_in_block
    return np.concatenate(found)


def _batches(
    ordinals: npt.NDArray[np.int64], texts: pa.LargeStringArray
) -> Iterator[tuple[npt.NDArray[np.int64], pa.LargeStringArray]]:
    """Yield neighbours together that begin in the same BATCH_BYTES."""
    offsets, _ = text_buffers(texts)
    block = (offsets[:-1] - offsets[0]) // BATCH_BYTES
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(block)) + 1), len(block)]):
        yield ordinals[first:last], texts.slice(first, last - first)

"""Documents of a text file: the whole file, its lines, or the pieces between separators.

Every byte is text: a UTF-8 byte order mark at the start stays part of the first document.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tokflow.documents.batch import ParsedBatch
from tokflow.documents.compression import read_blocks
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.lines import Pieces, cut
from tokflow.documents.text_arrays import found_in, too_large_alone
from tokflow.errors import ConfigError
from tokflow.store.arrow import texts_of


def read(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[ParsedBatch]:
    """Yield the documents of about `batch_bytes` of the file at once."""
    if config.is_chat or config.join is not None:
        raise ConfigError(
            where=path,
            expected="a format with fields, for documents.messages, prompt, completion and "
            "join name them",
            found="a text file, which has none",
            remedy="set documents.format to what the file is, or use another file",
        )
    blocks = read_blocks(path, block_bytes=batch_bytes)
    if config.document_per == "file":
        whole = _whole(blocks, config.limit.document_bytes)
        yield _found(whole, b"", config)
        return
    separator = (config.separator or "\n").encode()
    for pieces in cut(blocks, separator, max_bytes=config.limit.document_bytes):
        yield _found(pieces, separator, config)


def _whole(blocks: Iterator[bytes], max_bytes: int) -> Pieces:
    """Return all blocks as one piece; it is read no further than it may be large."""
    held, num_bytes = [], 0
    for block in blocks:
        num_bytes += len(block)
        if num_bytes > max_bytes:
            return Pieces(0, 0, [], is_too_large=True)
        held.append(block)
    return Pieces(0, 0, [b"".join(held)])


def _found(pieces: Pieces, separator: bytes, config: DocumentsConfig) -> ParsedBatch:
    def place(index: int) -> tuple[int | None, int]:
        before = sum(map(len, pieces.pieces[:index])) + len(separator) * index
        line = pieces.first + index + 1 if separator == b"\n" else None
        return line, pieces.byte_offset + before

    if pieces.is_too_large:
        return too_large_alone([pieces.first], config.limit, place(0))
    array = texts_of(pieces.pieces).view(pa.large_binary())
    return found_in(array, config, first_row=pieces.first, place=place)

"""Documents of a text file: the whole file, its lines, or the pieces between separators.

Every byte is text: a UTF-8 byte order mark at the start stays part of the first document.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tokflow.arrays import texts_of
from tokflow.documents.compression import read_blocks
from tokflow.documents.contract import DocumentsConfig, Found
from tokflow.documents.pieces import Pieces, cut
from tokflow.documents.texts import found_in
from tokflow.errors import ConfigError, four_parts


def read(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[Found]:
    """Yield the documents of about `batch_bytes` of the file at once."""
    if config.is_chat or config.join is not None:
        raise ConfigError(
            four_parts(
                where=path,
                expected="a format with fields, for documents.messages, prompt, completion and "
                "join name them",
                found="a text file, which has none",
                remedy="set documents.format to what the file is, or use another file",
            )
        )
    blocks = read_blocks(path, block_bytes=batch_bytes)
    if config.document_per == "file":
        yield _found(Pieces(0, 0, [b"".join(blocks)]), separator=b"")
        return
    separator = (config.separator or "\n").encode()
    for pieces in cut(blocks, separator):
        yield _found(pieces, separator)


def _found(pieces: Pieces, separator: bytes) -> Found:
    def place(index: int) -> tuple[int | None, int]:
        before = sum(map(len, pieces.pieces[:index])) + len(separator) * index
        line = pieces.first + index + 1 if separator == b"\n" else None
        return line, pieces.byte_offset + before

    array = texts_of(pieces.pieces).view(pa.large_binary())
    return found_in(array, first_row=pieces.first, place=place)

"""Documents of a text file: the whole file, its lines, or the texts between separators.

Every byte is text, except a byte order mark at the start.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tokflow.documents.config import DocumentsConfig
from tokflow.documents.encodings import size_in
from tokflow.documents.lines import (
    LineBatch,
    count_before,
    cut,
    read_text,
    separator_of,
    text_ranges,
)
from tokflow.documents.parsed import ParsedBatch, all_bad, parse, too_large
from tokflow.documents.ranges import Before, OpenRange, Range
from tokflow.errors import ConfigError
from tokflow.store.arrow import texts_of


def read(
    path: Path, config: DocumentsConfig, batch_bytes: int, within: OpenRange | None = None
) -> Iterator[ParsedBatch]:
    """Yield the documents of about `batch_bytes` of the file at once."""
    if config.is_chat or config.join is not None or config.has_records:
        names_them = "documents.messages, prompt, completion and join name them"
        raise ConfigError(
            where=path,
            expected="a format with fields, for "
            + ("documents.transform is to get several" if config.has_records else names_them),
            found="a text file, which has none",
            remedy="set documents.format to what the file is, or use another file",
        )
    byte_offset, blocks = read_text(path, within, block_bytes=batch_bytes, encoding=config.encoding)
    max_bytes = config.limit.document_bytes
    if config.document_per == "file":
        batches: Iterable[LineBatch] = [_whole(blocks, byte_offset, max_bytes)]
    else:
        batches = cut(
            blocks,
            separator_of(config.separator) if config.separator else b"\n",
            max_bytes=max_bytes,
            byte_offset=byte_offset,
            size_of=size_in(config.encoding),
        )

    def parse_lines(batch: LineBatch) -> ParsedBatch:
        if batch.is_too_large:
            return all_bad(too_large(config.limit), [batch.place(0)])
        array = texts_of(batch.lines).view(pa.large_binary())
        found = parse([array], config, place=batch.place, encoding=config.encoding)
        is_uncut = config.document_per == "separator" and batch.first == 0 and not batch.ends
        return replace(found, is_uncut=is_uncut)

    yield from map(parse_lines, batches)  # which keeps none while the next is cut


def ranges(path: Path, config: DocumentsConfig, range_bytes: int) -> tuple[Range, ...]:
    """Return ranges of lines."""
    return text_ranges(path, range_bytes)


def before(path: Path, config: DocumentsConfig, within: Range) -> Before:
    """Return what stands before a range of lines."""
    max_bytes = config.limit.document_bytes
    return count_before(path, within, blank=None, max_bytes=max_bytes, num_each=1)


def _whole(blocks: Iterator[bytes], byte_offset: int, max_bytes: int) -> LineBatch:
    """Return all blocks as one text; it is read no further than it may be large."""
    held, num_bytes = [], 0
    for block in blocks:
        num_bytes += len(block)
        if num_bytes > max_bytes:
            return LineBatch(b"", 0, byte_offset, [], [], is_too_large=True)
        held.append(block)
    return LineBatch(b"", 0, byte_offset, [b"".join(held)], [])

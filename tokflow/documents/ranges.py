"""Ranges of a large raw file, each of which is read alone: `DocumentSource(..., within=...)`.

A text file is cut by bytes alone: a range has the lines that begin in it, none where one line is
longer than it. Whole stay compressed files, JSON arrays, txt whose documents are not lines, csv and
tsv, text in utf-16, Arrow streams, and what a limit ends early.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from tokflow.documents import decoding
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.formats import format_of_file, reader_of
from tokflow.errors import TokflowError
from tokflow.raw.globs import COMPRESSED_SUFFIXES
from tokflow.raw.remote_file import stop_reading_ahead

RANGE_BYTES = 64_000_000
"""Text in a range, about: 17 ranges of 1 GB take no more processor time than 5 do, and at the end
of a file a worker that has no range left waits for no more than this."""

TEXT_PER_PACKED_BYTE = 4
"""Typical bytes of text in a byte of parquet or of a compressed file."""

_SEARCH_BYTES = 64 * 1024
_BLOCK_BYTES = 500_000
"""Read at once, however large the batches are: what fits into a core's cache takes a tenth less
time, and the interpreter, which cutting and decoding hold, is free for the engine's thread after
1 ms and not after 15."""


@dataclass(frozen=True, slots=True)
class Range:
    """A share of a raw file that is read alone: the records that begin in it; or of a group of
    files, some of them.

    Bytes of a text, whose lines need not begin where it does; row groups of parquet;
    record batches of an Arrow file.
    """

    start: int
    """The first byte, row group or record batch."""
    stop: int
    """The one after the last."""

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"expected 0 <= start <= stop, found {self}")


def gathered(sizes: Sequence[int], range_bytes: int) -> tuple[Range, ...]:
    """Return consecutive things of these sizes in ranges of about one size.

    One belongs to the range in which it begins: of the sizes 2, 2, 2 and 2 and ranges of 5 the
    first two are one range, and the last two another.
    """
    total = sum(sizes)
    num_ranges = -(-total // range_bytes)
    starts: dict[int, int] = {}
    begin = 0
    for index, size in enumerate(sizes):
        starts.setdefault(begin * num_ranges // max(1, total), index)
        begin += size
    edges = [*starts.values(), len(sizes)]
    return tuple(map(Range, edges, edges[1:]))


class Before(NamedTuple):
    """Counts of what stands in a raw file before a range."""

    lines: int
    """0 where the format has no lines."""
    rows: int
    """Documents, and records that are none."""


@dataclass(eq=False)
class OpenRange:
    """A range that is being read, once. What stands before it is counted when it is first asked
    for, which only an error does."""

    range: Range
    count: Callable[[], Before]
    num_lines: int = 0
    """Line ends of the range, once all of it is read; 0 where the format has no lines."""

    @cached_property
    def before(self) -> Before:
        """Counts of what stands before the range."""
        return self.count()


def may_be_cut(path: Path, config: DocumentsConfig) -> bool:
    """Return whether a file of that name is read in ranges if it is large; it is not looked at."""
    format_ = format_of_file(path, config)
    is_whole = format_ in (None, "csv", "tsv") or config.limit.ends_early  # a line end may be text
    if format_ == "txt":
        is_whole = is_whole or config.document_per != "line" or decoding.is_wide(config.encoding)
    return not is_whole and path.suffix.lower() not in COMPRESSED_SUFFIXES


def text_bytes_of(path: Path, num_bytes: int, config: DocumentsConfig) -> int:
    """Return about how much text a file of that name and size holds; it is not looked at."""
    has_suffix = path.suffix.lower() in COMPRESSED_SUFFIXES
    is_packed = has_suffix or format_of_file(path, config) == "parquet"
    return num_bytes * TEXT_PER_PACKED_BYTE if is_packed else num_bytes


def is_cut(
    path: Path, num_bytes: int, config: DocumentsConfig, *, range_bytes: int = RANGE_BYTES
) -> bool:
    """Return whether a file of that name and size may have ranges; if not, it is read whole.

    The file is not looked at: one that is to be cut may turn out to be whole.
    """
    return text_bytes_of(path, num_bytes, config) > range_bytes and may_be_cut(path, config)


def ranges_of(
    path: Path, config: DocumentsConfig, *, range_bytes: int = RANGE_BYTES
) -> tuple[Range, ...]:
    """Return the ranges of a raw file, end to end, two or more; none where it is read whole.

    They depend on the file, the config and `range_bytes` alone; next to nothing of it is read.

    Raises: RawFileError, OSError where the file cannot be read.
    """
    num_bytes = path.stat().st_size
    if not is_cut(path, num_bytes, config, range_bytes=range_bytes):
        return ()
    found: tuple[Range, ...] = reader_of(path, config).ranges(path, config, range_bytes)
    return found if len(found) > 1 else ()


def open_range(path: Path, config: DocumentsConfig, within: Range) -> OpenRange:
    """Return a range to be read once; the file is not looked at.

    Raises: ValueError where such a file is read whole, ConfigError.
    """
    if not may_be_cut(path, config):
        raise ValueError(f"{path}: expected a file that may be cut, found one that is read whole")
    return OpenRange(within, partial(reader_of(path, config).before, path, config, within))


def declared_text_bytes(path: Path, num_bytes: int, config: DocumentsConfig) -> int:
    """Return about how many bytes of text a file of `num_bytes` holds: of parquet by the metadata
    of its columns, else as `text_bytes_of`. Errors of the file are left to its reader."""
    if format_of_file(path, config) == "parquet":
        with suppress(TokflowError, OSError):
            return sum(reader_of(path, config).sizes_of_row_groups(path, config))
    return text_bytes_of(path, num_bytes, config)


def text_ranges(path: Path, range_bytes: int) -> tuple[Range, ...]:
    """Return ranges of a text file, all of one size, of `range_bytes` or less; none where it is
    compressed under a plain name."""
    if decoding.is_compressed(path):
        return ()
    num_bytes = path.stat().st_size
    num_ranges = -(-num_bytes // range_bytes)
    edges = [num_bytes * nth // num_ranges for nth in range(num_ranges + 1)]
    return tuple(map(Range, edges, edges[1:]))


def read_text(
    path: Path, within: OpenRange | None, *, block_bytes: int, encoding: decoding.Encoding = "utf-8"
) -> tuple[int, Iterator[bytes]]:
    """Return the byte at which a text begins, and the text in UTF-8, in blocks of about
    `block_bytes` or less; all of it, or a range. A byte order mark is not in it."""
    block_bytes = min(block_bytes, _BLOCK_BYTES)
    byte_offset, blocks = 0, decoding.read_blocks(path, block_bytes=block_bytes)
    if within is not None:
        byte_offset, blocks = lines_within(path, within.range, block_bytes)
    if byte_offset == 0:
        return decoding.as_utf8(blocks, encoding, path)
    return byte_offset, blocks if encoding == "utf-8" else decoding.recoded(blocks, encoding)


def lines_within(path: Path, within: Range, block_bytes: int) -> tuple[int, Iterator[bytes]]:
    """Return where the first line begins that begins in the range, and its lines in blocks."""
    first, stop = (_line_start(path, position) for position in (within.start, within.stop))
    return first, _read_bytes(path, first, stop, block_bytes)


def _line_start(path: Path, position: int) -> int:
    """Return where the first line begins at that byte or after it; or else the text's end."""
    if position == 0:
        return 0
    position -= 1  # of the line end before it
    for block in _read_bytes(path, position, sys.maxsize, _SEARCH_BYTES):
        if (index := block.find(b"\n")) >= 0:
            return position + index + 1
        position += len(block)
    return position


def _read_bytes(path: Path, start: int, stop: int, block_bytes: int) -> Iterator[bytes]:
    """Yield the text between two bytes of it."""
    with path.open("rb", buffering=0) as file:
        stop_reading_ahead(file, stop)
        file.seek(start)
        while block := file.read(max(0, min(block_bytes, stop - start))):
            yield block
            start += len(block)

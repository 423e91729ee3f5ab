"""Ranges of a large raw file, each of which is read alone: `read_documents(..., within=...)`.

A text file is cut by bytes alone: a range has the lines that begin in it, none where one line is
longer than it. Whole stay compressed files, JSON arrays, txt whose documents are not lines, csv and
tsv with quotes, text in utf-16, Arrow streams, and what a limit ends early.
"""

import struct
from codecs import BOM_UTF8
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tokflow.documents.compression import (
    COMPRESSED_SUFFIXES,
    ZSTD_SUFFIXES,
    hidden_suffix,
    read_blocks,
)
from tokflow.documents.config import DocumentsConfig, FileFormat
from tokflow.documents.encodings import is_wide
from tokflow.documents.file_formats import before_of, format_of, format_of_file
from tokflow.documents.file_range import OpenRange, Range, even_edges
from tokflow.documents.formats.parquet import text_bytes
from tokflow.errors import TokflowError
from tokflow.store.zstd import zstd

__all__ = [
    "RANGE_BYTES",
    "Range",
    "is_cut",
    "open_range",
    "ranges_of",
    "text_bytes_of",
]

RANGE_BYTES = 64_000_000
"""Text in a range, about: 17 ranges of 1 GB take no more processor time than 5 do, and at the end
of a file a worker that has no range left waits for no more than this."""

TEXT_PER_PACKED_BYTE = 4
"""Bytes of text in a byte of parquet or of a compressed file, about."""

_START_BYTES = 64 * 1024


def may_be_cut(path: Path, config: DocumentsConfig) -> bool:
    """Return whether a file of that name is read in ranges if it is large; it is not looked at."""
    format_ = format_of_file(path, config)
    if config.limit.ends_early:
        return False
    if format_ is None or (format_ == "txt" and config.document_per != "line"):
        return False
    if format_ in ("csv", "tsv", "txt") and is_wide(config.encoding):
        return False
    return path.suffix.lower() not in COMPRESSED_SUFFIXES


def text_bytes_of(path: Path, num_bytes: int, config: DocumentsConfig) -> int:
    """Return about how much text a file of that name and size holds; it is not looked at."""
    is_compressed = path.suffix.lower() in COMPRESSED_SUFFIXES
    is_packed = is_compressed or format_of_file(path, config) == "parquet"
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

    They depend on the file, the config and `range_bytes` alone. All of a csv without quotes is
    read, at 5 GB/s, of the others next to nothing.

    Raises: RawFileError, OSError where the file cannot be read.
    """
    num_bytes = path.stat().st_size
    if not is_cut(path, num_bytes, config, range_bytes=range_bytes):
        return ()
    format_ = format_of(path, config)
    if format_ in ("parquet", "arrow"):
        from tokflow.documents.formats.column_ranges import ranges_of_arrow, ranges_of_parquet

        find = ranges_of_parquet if format_ == "parquet" else ranges_of_arrow
        found = find(path, config, range_bytes)
        return found if len(found) > 1 else ()
    edges = even_edges(num_bytes, range_bytes)
    return () if _is_whole(path, config, format_) else tuple(map(Range, edges, edges[1:]))


def _is_whole(path: Path, config: DocumentsConfig, format_: FileFormat) -> bool:
    """Return whether a text file is compressed under a plain name, is one JSON array, or has line
    ends in quotes."""
    with path.open("rb", buffering=0) as file:
        if hidden_suffix(file.read(_START_BYTES)):
            return True
    if format_ in ("csv", "tsv"):
        from tokflow.documents.formats.delimited import has_quotes

        return has_quotes(path, config)
    start = next(read_blocks(path, block_bytes=_START_BYTES), b"")
    return format_ == "jsonl" and start.removeprefix(BOM_UTF8).lstrip().startswith(b"[")


def open_range(path: Path, config: DocumentsConfig, within: Range) -> OpenRange:
    """Return a range to be read once; the file is not looked at.

    Raises: ValueError where such a file is read whole, ConfigError.
    """
    if not may_be_cut(path, config):
        raise ValueError(f"{path}: expected a file that may be cut, found one that is read whole")
    return OpenRange(within, partial(before_of(path, config), path, config, within))


_HEADER_BYTES = 18
"""The longest header of a Zstandard frame."""


def declared_text_bytes(path: Path, num_bytes: int, config: DocumentsConfig) -> int:
    """Return about how many bytes of text a file of `num_bytes` holds; see `text_bytes_of`.

    A parquet file says it of its columns, a .zst of its first frame, a .gz of its last member
    modulo 4 GiB. What is no more than the file itself is taken for that of a part.
    """
    suffix = path.suffix.lower()
    say = _DECLARED.get(suffix)
    if say is None and format_of_file(path, config) == "parquet":
        say = _of_parquet
    declared = 0
    if say is not None:
        try:
            declared = say(path, config)
        except (TokflowError, OSError, ValueError, struct.error, zstd.ZstdError):
            declared = 0  # who reads it says what is wrong
    return declared if declared > num_bytes else text_bytes_of(path, num_bytes, config)


def _of_parquet(path: Path, config: DocumentsConfig) -> int:
    import pyarrow.parquet as pq

    from tokflow.documents.formats.columns import for_parquet

    metadata = pq.read_metadata(for_parquet(path))
    row_groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(text_bytes(row_group, list(config.columns)) for row_group in row_groups)


def _of_gzip(path: Path, config: DocumentsConfig) -> int:
    with path.open("rb") as file:
        file.seek(-4, 2)
        return int(struct.unpack("<I", file.read())[0])


def _of_zstd(path: Path, config: DocumentsConfig) -> int:
    with path.open("rb") as file:
        return zstd.get_frame_info(file.read(_HEADER_BYTES)).decompressed_size or 0


_DECLARED: dict[str, Callable[[Path, DocumentsConfig], int]] = {
    ".gz": _of_gzip,
    **dict.fromkeys(ZSTD_SUFFIXES, _of_zstd),
}

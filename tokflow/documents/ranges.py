"""Ranges of a large raw file, each of which is read alone: `read_documents(..., within=...)`.

A text file is cut by bytes alone: a range has the lines that begin in it, none where one line is
longer than it; csv and tsv are cut where records begin. Lines in a .zst are cut where a frame
begins, if a table says where frames are. Whole stay other compressed files, JSON arrays, txt whose
documents are not lines, csv and tsv with quotes where no writer puts them, text in utf-16, Arrow
streams, and what a limit ends early.
"""

from codecs import BOM_UTF8
from functools import partial
from importlib import import_module
from pathlib import Path

from tokflow.documents.compression import (
    COMPRESSED_SUFFIXES,
    ZSTD_SUFFIXES,
    hidden_suffix,
    read_blocks,
)
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.encodings import is_wide
from tokflow.documents.file_formats import before_of, format_of, format_of_file
from tokflow.documents.file_range import OpenRange, Range, even_edges

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

_BY_CONTENT = {
    "parquet": "formats.column_ranges.ranges_of_parquet",
    "arrow": "formats.column_ranges.ranges_of_arrow",
    "csv": "formats.csv_ranges.ranges_of_csv",
    "tsv": "formats.csv_ranges.ranges_of_csv",
    ".zst": "zst_frames.ranges_of_frames",
}
"""The function that finds the ranges of formats that are not cut at any byte."""


def may_be_cut(path: Path, config: DocumentsConfig) -> bool:
    """Return whether a file of that name is read in ranges if it is large; it is not looked at."""
    format_ = format_of_file(path, config)
    if config.limit.ends_early:
        return False
    if format_ is None or (format_ == "txt" and config.document_per != "line"):
        return False
    if format_ in ("csv", "tsv", "txt") and is_wide(config.encoding):
        return False
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        return path.suffix.lower() in ZSTD_SUFFIXES and format_ in ("jsonl", "txt")
    return True


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

    They depend on the file, the config and `range_bytes` alone. Of csv and tsv all is read, at 0.9
    to 3 GB/s on each core, of the others next to nothing.

    Raises: RawFileError, OSError where the file cannot be read.
    """
    num_bytes = path.stat().st_size
    if not is_cut(path, num_bytes, config, range_bytes=range_bytes):
        return ()
    is_compressed = path.suffix.lower() in COMPRESSED_SUFFIXES
    kind = ".zst" if is_compressed else format_of(path, config)
    edges = even_edges(num_bytes, range_bytes)
    found = tuple(map(Range, edges, edges[1:]))
    if kind in _BY_CONTENT:
        module, _, name = _BY_CONTENT[kind].rpartition(".")
        find = getattr(import_module(f"tokflow.documents.{module}"), name)
        found = find(path, config, range_bytes)
    is_whole = len(found) < 2 or (kind not in ("parquet", "arrow") and _is_whole(path, kind))
    return () if is_whole else found


def _is_whole(path: Path, kind: str) -> bool:
    """Return whether a text file is compressed under a plain name, or is one JSON array."""
    with path.open("rb", buffering=0) as file:
        if kind != ".zst" and hidden_suffix(file.read(_START_BYTES)):
            return True
    start = next(read_blocks(path, block_bytes=_START_BYTES), b"")
    return start.removeprefix(BOM_UTF8).lstrip().startswith(b"[") and kind in ("jsonl", ".zst")


def open_range(path: Path, config: DocumentsConfig, within: Range) -> OpenRange:
    """Return a range to be read once; the file is not looked at.

    Raises: ValueError where such a file is read whole, ConfigError.
    """
    if not may_be_cut(path, config):
        raise ValueError(f"{path}: expected a file that may be cut, found one that is read whole")
    return OpenRange(within, partial(before_of(path, config), path, config, within))

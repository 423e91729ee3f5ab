"""Ranges of a large raw file, each of which is read alone: `read_documents(..., within=...)`.

A text file is cut by bytes alone: a range has the lines that begin in it, none where one line is
longer than it. Whole stay compressed files (also .zst of several frames, for who wrote them cut
them anywhere), txt whose documents are not lines, csv and tsv with quotes, in which line ends may
be text, Arrow streams, and what a limit ends early.
"""

from importlib import import_module
from pathlib import Path

from tokflow.documents.compression import DECOMPRESSORS
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.file_formats import before_of, format_of, format_of_file
from tokflow.documents.file_range import Range

__all__ = [
    "RANGE_BYTES",
    "Range",
    "is_cut",
    "may_be_cut",
    "ranges_of",
    "rows_before",
    "text_bytes_of",
]

RANGE_BYTES = 64_000_000
"""Text in a range, about: 17 ranges of 1 GB take no more processor time than 5 do, and at the end
of a file a worker that has no range left waits for no more than this."""

TEXT_PER_PACKED_BYTE = 4
"""Bytes of text in a byte of parquet or of a compressed file, about."""

_COLUMNS = {"parquet": "ranges_of_parquet", "arrow": "ranges_of_arrow"}
_SCAN_BYTES = 4 * 1024 * 1024


def may_be_cut(path: Path, config: DocumentsConfig) -> bool:
    """Return whether a file of that name is read in ranges if it is large; it is not looked at."""
    format_ = format_of_file(path, config)
    if config.limit.documents is not None or config.limit.characters is not None:
        return False
    if format_ is None or path.suffix.lower() in DECOMPRESSORS:
        return False
    return format_ != "txt" or config.document_per == "line"


def text_bytes_of(path: Path, num_bytes: int, config: DocumentsConfig) -> int:
    """Return about how much text a file of that name and size holds; it is not looked at."""
    is_compressed = path.suffix.lower() in DECOMPRESSORS
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

    They depend on the file, the config and `range_bytes` alone. Of csv and tsv the text is read
    up to the first quote, of the others next to nothing.

    Raises: RawFileError, OSError where the file cannot be read.
    """
    num_bytes = path.stat().st_size
    if not is_cut(path, num_bytes, config, range_bytes=range_bytes):
        return ()
    format_ = format_of(path, config)
    if format_ in _COLUMNS:
        module = import_module("tokflow.documents.column_ranges")
        found: tuple[Range, ...] = getattr(module, _COLUMNS[format_])(path, config, range_bytes)
        return found if len(found) > 1 else ()
    if format_ in ("csv", "tsv") and _has_quotes(path):
        return ()
    num_ranges = -(-num_bytes // range_bytes)
    edges = [num_bytes * nth // num_ranges for nth in range(num_ranges + 1)]
    return tuple(map(Range, edges, edges[1:]))


def rows_before(path: Path, config: DocumentsConfig, within: Range) -> int:
    """Return how many rows of the file stand before the range; of text all before it is read."""
    return before_of(path, config)(path, config, within).rows


def _has_quotes(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        while block := file.read(_SCAN_BYTES):
            if b'"' in block:
                return True
    return False

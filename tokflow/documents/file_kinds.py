"""Files that are none of the formats of raw files, known by their first bytes and named."""

import re
from pathlib import Path

from tokflow.errors import RawFileError

START_BYTES = 512
"""Bytes from which a kind is known."""

_UNPACK = "unpack it, or narrow the pattern of raw.files that matches it"
_EXPORT = "write its text in one of the formats of raw files, or narrow raw.files"
_AS_ITS_FORMAT = "give it the suffix of its format, or narrow raw.files"
_AGAIN = "download the file again: a server has sent a page in its place"
_SUFFIX = "decompress it, or give it the suffix of its compression as the last one"
_HTML = re.compile(rb"\s*<(?:!doctype html|html|head)\b", re.IGNORECASE)

_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb"PK(?:\x03\x04|\x05\x06)", "a zip archive (or .xlsx, .docx)", _UNPACK),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (rb"Rar!\x1a\x07", "a rar archive", _UNPACK),
    (rb"[\s\S]{257}ustar", "a tar archive", _UNPACK),
    (rb"\x1f\x8b\x08", "gzip", _SUFFIX),
    (rb"\x28\xb5\x2f\xfd", "zstd", _SUFFIX),
    (rb"\x04\x22\x4d\x18", "lz4", _SUFFIX),
    (rb"\xfd7zXZ\x00", "xz", _SUFFIX),
    (rb"BZh[1-9]1AY&SY", "bzip2", _SUFFIX),
    (rb"\x80[\x02-\x05]", "a Python pickle, which is never loaded", _EXPORT),
    (rb"SQLite format 3\x00", "a SQLite database", _EXPORT),
    (rb"%PDF-", "a PDF document", _EXPORT),
    (rb"\x93NUMPY", "a numpy array", _EXPORT),
    (rb"\x89HDF\r\n", "an HDF5 file", _EXPORT),
    (rb"PAR1\x15", "a parquet file", _AS_ITS_FORMAT),
    (rb"ARROW1\x00", "an Arrow file", _AS_ITS_FORMAT),
    (
        rb"version https://git-lfs",
        "a pointer of Git LFS in place of the file",
        "fetch the file with `git lfs pull`",
    ),
)


def kind_of(start: bytes, *, may_be_html: bool = False) -> tuple[str, str] | None:
    """Return what a file that begins with these bytes is, if it is no text of any format, and what
    to do; with `may_be_html` a page of HTML is text."""
    if not may_be_html and _HTML.match(start):
        return "a page of HTML", _AGAIN
    return next(((kind, remedy) for magic, kind, remedy in _KINDS if re.match(magic, start)), None)


def refuse_other_kinds(
    start: bytes, path: Path, *, expected: str, may_be_html: bool = False
) -> None:
    """Raise RawFileError, which names what the file is, if it is no text of any format."""
    if found := kind_of(start, may_be_html=may_be_html):
        kind, remedy = found
        raise RawFileError(where=path, expected=expected, found=kind, remedy=remedy)

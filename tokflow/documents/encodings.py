"""Text of raw files: files that are none, in other encodings than UTF-8, and the bytes it is there.

A byte that is no character of the encoding becomes a lone surrogate, which is no UTF-8: it spoils
the one document that it is in.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

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


Encoding: TypeAlias = Literal[
    "utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16", "utf-16-le", "utf-16-be"
]

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # which begins as the next does
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def is_wide(encoding: str) -> bool:
    r"""Return whether characters take several bytes, so that a byte b"\n" need not end a line."""
    return encoding.startswith("utf-16")


def marked_encoding(start: bytes) -> tuple[str | None, int]:
    """Return the encoding that a byte order mark at the start of a file names, if any, and the size
    of the mark."""
    marks = (mark for mark in _MARKS if start.startswith(mark))
    mark = next(marks, b"")
    return _MARKS.get(mark), len(mark)


def as_utf8(blocks: Iterable[bytes], encoding: Encoding, path: Path) -> tuple[int, Iterator[bytes]]:
    """Return the size of the byte order mark of a file, and its text in UTF-8 without the mark.

    Raises: RawFileError where the file is no text at all, or the mark is of another encoding, or
    needed and missing.
    """
    blocks = iter(blocks)
    start = b""
    while len(start) < START_BYTES and (block := next(blocks, b"")):
        start += block
    refuse_other_kinds(start, path, expected="text", may_be_html=True)
    marked, mark_bytes = marked_encoding(start)
    needs_mark = encoding == "utf-16" and bool(start)
    is_of_mark = marked == encoding or (needs_mark and marked in ("utf-16-le", "utf-16-be"))
    if (marked or needs_mark) and not is_of_mark:
        raise RawFileError(
            where=path,
            expected=f"{encoding} with its byte order mark" if needs_mark else f"{encoding} text",
            found=f"the byte order mark of {marked}" if marked else f"none in {start[:20]!r}",
            remedy="set documents.encoding to that of the file (csv, tsv and txt have it), or "
            "convert the file to UTF-8",
        )
    blocks = chain([start[mark_bytes:]], blocks)
    if encoding == "utf-8":
        return mark_bytes, blocks
    return mark_bytes, recoded(blocks, marked or encoding)


def recoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield text in UTF-8, of which no block ends within a character; a byte order mark is text."""
    errors = _errors(encoding)
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "surrogatepass")
    left, _ = decoder.getstate()
    whole = len(left) // 2 * 2
    text = left[:whole].decode(encoding, errors) + "".join(chr(0xDC00 + of) for of in left[whole:])
    if text:
        yield text.encode("utf-8", "surrogatepass")


def size_in(encoding: Encoding) -> Callable[[bytes], int]:
    """Return a function that gives how many bytes of a file a text of it takes there."""
    return len if encoding == "utf-8" else lambda text: len(in_file(text, encoding))


def in_file(text: bytes, encoding: Encoding) -> bytes:
    """Return a text that was made UTF-8 as it stands in its file."""
    name = "utf-16-le" if encoding == "utf-16" else encoding
    return text.decode("utf-8", "surrogatepass").encode(name, _errors(encoding))


def _errors(encoding: str) -> str:
    return "surrogatepass" if is_wide(encoding) else "surrogateescape"

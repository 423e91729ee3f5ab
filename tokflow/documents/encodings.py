"""Text of raw files in other encodings than UTF-8, and the bytes of the file that it stands for.

A byte that is no character of the encoding becomes a lone surrogate, which is no UTF-8: it spoils
the one document that it is in.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

from tokflow.documents.file_kinds import START_BYTES, refuse_other_kinds
from tokflow.errors import RawFileError

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

"""The content of a raw file as UTF-8 text: decompressed, refused if it is no text, recoded.

A compressed stream that is cut short or followed by something else is an error, never an early end:
the standard library's BZ2File and LZMAFile end silently at a damaged second stream, and GzipFile at
an empty file (Python 3.11 to 3.14), so the decompressors are driven here.

A byte that is no character of the encoding becomes a lone surrogate, which is no UTF-8: it spoils
the one document that it is in.
"""

import bz2
import codecs
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from tokflow.errors import BadContentError, TokflowError
from tokflow.store.streams import zstd

_DECOMPRESSOR_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError)

_READ_BYTES = 256 * 1024
"""Compressed bytes read at once; for text about a fifth of a block of 1 to 2 MB."""


def read_blocks(path: Path, *, block_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed content, end to end, in blocks of at most `block_bytes`.

    Raises:
        BadContentError: the compressed data is damaged, cut short or followed by other data.
    """
    suffix = path.suffix.lower()
    with path.open("rb", buffering=0) as file:
        start = b""
        if suffix == ".lz4":
            yield from _decompressed_lz4(path, file, block_bytes)
        elif suffix not in DECOMPRESSORS:
            start = file.read(max(block_bytes, 4))
            suffix = next((of for magic, of in _MAGIC.items() if start.startswith(magic)), "")
        if suffix in DECOMPRESSORS:
            yield from _decompressed(path, file, suffix, block_bytes, start)
            return
        while start:
            yield start
            start = file.read(block_bytes)


def is_compressed(path: Path) -> bool:
    """Return whether the content is compressed, whatever the name; False for a file that is
    gone."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(4).startswith(tuple(_MAGIC))
    return False


_MAGIC = {b"\x1f\x8b\x08": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
"""First bytes of compressed files that are read under a plain name too."""


def _decompressed(
    path: Path, file: BinaryIO, suffix: str, block_bytes: int, data: bytes
) -> Iterator[bytes]:
    data = data or file.read(_READ_BYTES)
    is_end = not data
    while data or is_end:
        decompressor = DECOMPRESSORS[suffix]()
        while not decompressor.eof:
            try:
                block = decompressor.decompress(data, max_length=block_bytes)
            except _DECOMPRESSOR_ERRORS as error:
                raise _damaged(path, suffix, str(error), file.tell()) from error
            if block:
                yield block
            elif is_end and not decompressor.eof:
                raise _damaged(path, suffix, "a stream that is cut short", file.tell())
            data = b""
            if decompressor.needs_input and not decompressor.eof:
                data = file.read(_READ_BYTES)
                is_end = not data
        data, is_end = decompressor.unused_data or file.read(_READ_BYTES), False
        if suffix in (".gz", ".xz"):  # zero bytes may follow their streams
            while data and not (data := data.lstrip(b"\0")):
                data = file.read(_READ_BYTES)


def _decompressed_lz4(path: Path, file: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    """Yield the text of frames of lz4, which Arrow decompresses; it refuses those that are cut."""
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "lz4")
    try:
        while block := stream.read(block_bytes):
            yield block
        if path.stat().st_size == 0:
            raise OSError("Truncated")
    except OSError as error:
        if isinstance(error, TokflowError) or error.errno is not None:
            raise
        is_cut = str(error).startswith("Truncated")
        found = "a stream that is cut short" if is_cut else str(error)
        raise _damaged(path, ".lz4", found, path.stat().st_size) from error


def _damaged(path: Path, suffix: str, found: str, position: int) -> BadContentError:
    where = f"{path}, in the compressed bytes up to {position:,}"
    expected = f"whole {suffix} streams and nothing else"
    remedy = "download or compress the file again"
    return BadContentError(where=where, expected=expected, found=found, remedy=remedy)


class _GzipDecompressor:
    """zlib's gzip decoder with the interface of the others."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


def _new_zstd_decompressor() -> zstd.ZstdDecompressor:
    # 31 is the largest window there is: `zstd --long=31` is how some large dumps are made.
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 31})


DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": _GzipDecompressor,
    ".zst": _new_zstd_decompressor,
    ".zstd": _new_zstd_decompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}
"""Makers of what decompresses one stream, such as a gzip member or a zstd frame, by suffix."""


START_BYTES = 512
"""Bytes at the start of a file by which its kind is known."""

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
    """Raise BadContentError, which names what the file is, if it is no text of any format."""
    if found := kind_of(start, may_be_html=may_be_html):
        kind, remedy = found
        raise BadContentError(where=path, expected=expected, found=kind, remedy=remedy)


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
    """Return the bytes that the byte order mark of a file takes, and its text in UTF-8 without it.

    Raises: BadContentError where the file is no text at all, or the mark is of another encoding, or
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
        expected = f"{encoding} with its byte order mark" if needs_mark else f"{encoding} text"
        found = f"the byte order mark of {marked}" if marked else f"none in {start[:20]!r}"
        remedy = (
            "set documents.encoding to that of the file (csv, tsv and txt have it), or "
            "convert the file to UTF-8"
        )
        raise BadContentError(where=path, expected=expected, found=found, remedy=remedy)
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


def in_file(text: bytes, encoding: Encoding) -> bytes:
    """Return the bytes in a file of this encoding of a text that was recoded to UTF-8."""
    name = "utf-16-le" if encoding == "utf-16" else encoding
    return text.decode("utf-8", "surrogatepass").encode(name, _errors(encoding))


def _errors(encoding: str) -> str:
    return "surrogatepass" if is_wide(encoding) else "surrogateescape"

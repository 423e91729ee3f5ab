"""The bytes of a raw file, decompressed as its suffix or its first bytes say, in blocks.

A stream that is cut short or followed by something else is an error, never an early end: the
standard library's BZ2File and LZMAFile end silently at a damaged second stream, and GzipFile
at an empty file (Python 3.11 to 3.14), so the decompressors are driven here.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from tokflow.errors import RawFileError
from tokflow.store.zstd import zstd

_DECOMPRESSOR_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError)

_READ_BYTES = 256 * 1024
"""Compressed bytes read at once; for text about a fifth of a block of 1 to 2 MB."""


def read_blocks(path: Path, *, block_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed content, end to end, in blocks of at most `block_bytes`.

    Raises:
        RawFileError: the compressed data is damaged, cut short or followed by other data.
    """
    suffix = path.suffix.lower()
    with path.open("rb", buffering=0) as file:
        if suffix == ".lz4":
            yield from _decompressed_lz4(path, file, block_bytes)
            return
        start = b"" if suffix in DECOMPRESSORS else file.read(max(block_bytes, 4))
        suffix = suffix if suffix in DECOMPRESSORS else hidden_suffix(start)
        if suffix:
            yield from _decompressed(path, file, suffix, block_bytes, start)
            return
        while start:
            yield start
            start = file.read(block_bytes)


def is_compressed(path: Path) -> bool:
    """Return whether the content is compressed, whatever the name says; False of a file that is
    gone."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return bool(hidden_suffix(file.read(4)))
    return False


def hidden_suffix(start: bytes) -> str:
    """Return the suffix of the compression of a file that begins with these bytes, or none."""
    return next((suffix for magic, suffix in _MAGIC.items() if start.startswith(magic)), "")


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
        data, is_end = _next_stream(suffix, decompressor.unused_data, file.read), False


def _decompressed_lz4(path: Path, file: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    """Yield the text of frames of lz4, which Arrow decompresses; it refuses those that are cut."""
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "lz4")
    is_empty = True
    while True:
        try:
            block = stream.read(block_bytes)
        except OSError as error:
            is_cut = str(error).startswith("Truncated")
            found = "a stream that is cut short" if is_cut else str(error)
            raise _damaged(path, ".lz4", found, path.stat().st_size) from error
        if not block:
            break
        is_empty = False
        yield block
    if is_empty and path.stat().st_size == 0:
        raise _damaged(path, ".lz4", "a stream that is cut short", 0)


def _next_stream(suffix: str, unused: bytes, read: Callable[[int], bytes]) -> bytes:
    """Return the first bytes of the next stream; none at the end of the file."""
    data = unused or read(_READ_BYTES)
    if suffix in (".gz", ".xz"):  # zero bytes may follow their streams
        data = data.lstrip(b"\0")
        while not data and (more := read(_READ_BYTES)):
            data = more.lstrip(b"\0")
    return data


def _damaged(path: Path, suffix: str, found: str, position: int) -> RawFileError:
    return RawFileError(
        where=f"{path}, in the compressed bytes up to {position:,}",
        expected=f"whole {suffix} streams and nothing else",
        found=found,
        remedy="download or compress the file again",
    )


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


Decompressor: TypeAlias = (
    _GzipDecompressor | zstd.ZstdDecompressor | bz2.BZ2Decompressor | lzma.LZMADecompressor
)
"""Decompresses one stream: a gzip member, a zstd frame."""

DECOMPRESSORS: dict[str, Callable[[], "Decompressor"]] = {
    ".gz": _GzipDecompressor,
    ".zst": _new_zstd_decompressor,
    ".zstd": _new_zstd_decompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}

COMPRESSED_SUFFIXES = (*DECOMPRESSORS, ".lz4")
"""Those of files that are decompressed as they are read."""

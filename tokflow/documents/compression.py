"""The bytes of a raw file, decompressed as its suffix says, in blocks.

A stream that is cut short or followed by something else is an error, never an early end: the
standard library's BZ2File and LZMAFile end silently at a damaged second stream, and GzipFile
at an empty file (Python 3.11 to 3.14), so the decompressors are driven here.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from tokflow.errors import RawFileError
from tokflow.store.zstd import zstd

DECOMPRESSOR_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError)

_READ_BYTES = 256 * 1024
"""Compressed bytes read at once; for text about a fifth of a block of 1 to 2 MB."""


def read_blocks(path: Path, *, block_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed content, end to end, in blocks of at most `block_bytes`.

    Raises:
        RawFileError: the compressed data is damaged, cut short or followed by other data.
    """
    new_decompressor = DECOMPRESSORS.get(path.suffix.lower())
    if new_decompressor is not None:
        yield from _decompressed(path, new_decompressor, block_bytes)
        return
    with path.open("rb", buffering=0) as file:
        while block := file.read(block_bytes):
            yield block


def _decompressed(
    path: Path, new_decompressor: Callable[[], "Decompressor"], block_bytes: int
) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        data = file.read(_READ_BYTES)
        is_end = not data
        while data or is_end:
            decompressor = new_decompressor()
            while not decompressor.eof:
                block = _next_block(decompressor, data, block_bytes, path, file.tell())
                if block:
                    yield block
                elif is_end and not decompressor.eof:
                    raise _damaged(path, "a stream that is cut short", file.tell())
                data = b""
                if decompressor.needs_input and not decompressor.eof:
                    data = file.read(_READ_BYTES)
                    is_end = not data
            data, is_end = _next_stream(path, decompressor.unused_data, file.read), False


def _next_stream(path: Path, unused: bytes, read: Callable[[int], bytes]) -> bytes:
    """Return the first bytes of the next stream; none at the end of the file."""
    data = unused or read(_READ_BYTES)
    if path.suffix.lower() in (".gz", ".xz"):  # zero bytes may follow their streams
        data = data.lstrip(b"\0")
        while not data and (more := read(_READ_BYTES)):
            data = more.lstrip(b"\0")
    return data


def _next_block(
    decompressor: "Decompressor", data: bytes, block_bytes: int, path: Path, position: int
) -> bytes:
    try:
        return decompressor.decompress(data, max_length=block_bytes)
    except DECOMPRESSOR_ERRORS as error:
        raise _damaged(path, str(error), position) from error


def _damaged(path: Path, found: str, position: int) -> RawFileError:
    return RawFileError(
        where=f"{path}, in the compressed bytes up to {position:,}",
        expected=f"whole {path.suffix} streams and nothing else",
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
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}

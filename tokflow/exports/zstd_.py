"""Zstandard under the names that litdata and mosaicml-streaming give it: `zstd`, `zstd:19`."""

import re
import sys

from tokflow.errors import ConfigError, four_parts

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def check_zstd(compression: str | None, *, where: str) -> None:
    """Refuse a compression that is not `zstd` or `zstd:1` to `zstd:22`.

    Raises: ConfigError.
    """
    if compression is not None and not re.fullmatch(r"zstd(:([1-9]|1\d|2[0-2]))?", compression):
        raise ConfigError(
            four_parts(
                where=f"exports: {where}: compression",
                expected="zstd, or zstd:1 to zstd:22 for a level",
                found=repr(compression),
                remedy="name one of them, or leave it out for files that are not compressed",
            )
        )


def compress(data: bytes | bytearray, compression: str, *, default_level: int) -> bytes:
    """Return one frame with the size of its content, at the level that `compression` names.

    Made at one go, for a stream of pieces gives other bytes than the peers' writers do.
    """
    _, _, level = compression.partition(":")
    return zstd.compress(data, level=int(level) if level else default_level)


def decompress(data: bytes) -> bytes:
    """Return the content of one frame.

    Raises: zstd.ZstdError where the frame is damaged or cut short.
    """
    return zstd.decompress(data)

"""Zstandard as litdata and mosaicml-streaming want it: whole files, named `zstd` or `zstd:19`."""

import sys
from typing import Literal

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Compression = Literal["none", "zstd"]

MAX_LEVEL = 22


def peer_name(compression: Compression, level: int | None) -> str | None:
    """Return what both call a compression: `zstd` at their default level, else `zstd:<level>`."""
    if compression == "none":
        return None
    return "zstd" if level is None else f"zstd:{level}"


def compress(data: bytes | bytearray, level: int) -> bytes:
    """Return one frame that says how much is in it.

    Made at one go, for a stream of pieces gives other bytes than the peers' writers do.
    """
    return zstd.compress(data, level=level)


def decompress(data: bytes) -> bytes:
    """Return the content of one frame.

    Raises: zstd.ZstdError where the frame is damaged or cut short.
    """
    return zstd.decompress(data)

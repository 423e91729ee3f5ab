"""Zstandard as litdata and mosaicml-streaming want it: whole files, named `zstd` or `zstd:19`."""

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from tokflow.store.zstd import zstd

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


def open_bytes(path: Path, *, is_compressed: bool) -> npt.NDArray[np.uint8]:
    """Return what a file holds, memory-mapped unless it is one frame.

    Raises: zstd.ZstdError where the frame is damaged or cut short.
    """
    if is_compressed:
        return np.frombuffer(zstd.decompress(path.read_bytes()), dtype=np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r")

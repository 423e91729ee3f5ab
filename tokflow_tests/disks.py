"""Disks that flip a bit or take no more."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flip(path: Path) -> Path:
    """Flip a bit in the middle as a disk does: size and mtime stay."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return path


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """Let no file of this process grow past `num_bytes`: the write that gets there is a short one,
    as on a disk that runs full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

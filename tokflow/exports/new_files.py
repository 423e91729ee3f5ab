"""New files of an export, hashed while they are written."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tokflow.errors import CorruptOutputError
from tokflow.store.copies import CopiedRange, note_copies
from tokflow.store.hashed_writer import HashedWriter
from tokflow.store.listed_files import Stamp
from tokflow.store.manifest import FileEntry

_written: dict[Path, tuple[FileEntry, Stamp]] = {}
"""Files that were made here, and how they looked then."""

COPY_BYTES = 2**28
"""Copied by one call, which cannot be interrupted."""

NOT_BY_KERNEL = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""What a kernel says that does not copy files, or not between these file systems."""


@contextmanager
def open_hashed(path: Path) -> Iterator[HashedWriter]:
    """Open a new file, in a folder that is made if need be."""
    path.parent.mkdir(exist_ok=True)
    with HashedWriter(path) as file:
        yield file
    _written[path] = file.entry(), Stamp.of(path.stat())


def copy_file(path: Path, entry: FileEntry, new: Path) -> None:
    """Copy a file of this entry, which the copy takes over, so that whoever compares the two finds
    a copy that is not equal.

    The kernel copies, without any byte in this process, or on some file systems in no time; where
    it copies less than all, as some file systems have it, this process does.

    Raises: CorruptOutputError where the file has not the size of its entry.
    """
    with path.open("rb") as source, new.open("wb") as file:
        _copy_by_kernel(source, file)
        if os.fstat(file.fileno()).st_size != entry.num_bytes:
            source.seek(0)
            file.seek(0)
            file.truncate()
            shutil.copyfileobj(source, file, COPY_BYTES // 16)
    stamp = Stamp.of(new.stat())
    if stamp.num_bytes != entry.num_bytes:
        raise CorruptOutputError(
            where=path,
            expected=f"{entry.num_bytes:,} bytes to copy",
            found=f"{stamp.num_bytes:,}",
            remedy="run `tokflow run` again, which makes what is damaged again",
        )
    _written[new] = entry, stamp
    note_copies(new, [CopiedRange(0, path, 0, entry.num_bytes)])


def _copy_by_kernel(source: IO[bytes], file: IO[bytes]) -> None:
    """Copy what the kernel is able to, which may be nothing."""
    try:
        while os.copy_file_range(source.fileno(), file.fileno(), COPY_BYTES):
            pass
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", errno.ENOSYS) not in NOT_BY_KERNEL:
            raise


def take_hashed(folder: Path) -> dict[str, FileEntry]:
    """Return size and sha256 of the files below `folder` that were made here, by path there; but
    not of those that were written to since. They are forgotten here."""
    paths = [path for path in _written if path.is_relative_to(folder)]
    found = {path: _written.pop(path) for path in paths}
    return {
        path.relative_to(folder).as_posix(): entry
        for path, (entry, stamp) in found.items()
        if path.exists() and Stamp.of(path.stat()) == stamp
    }

"""A file on this disk, known again without reading it."""

import os
from dataclasses import dataclass

from tokflow.store.manifest import FileEntry


@dataclass(frozen=True, slots=True)
class Stamp:
    """Size, mtime, ctime and inode of a file, by which a change is detected."""

    num_bytes: int
    mtime_ns: int
    ctime_ns: int
    """Changes with the content even where somebody sets mtime back; also by chmod and links."""
    inode: int

    @property
    def changed_ns(self) -> int:
        """The later of its times: `cp -p` and the like set mtime back, and not ctime."""
        return max(self.mtime_ns, self.ctime_ns)

    @staticmethod
    def of(status: os.stat_result) -> "Stamp":
        """Return the stamp of a file with this status."""
        return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


arrived: dict[str, tuple[FileEntry, Stamp]] = {}
"""Files that this process has hashed when they were made, found whole or came, by path, and how
they looked then."""

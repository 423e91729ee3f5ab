"""The files of outputs: those that manifests list, compared with what is there, or known again
without reading; and those that people publish beside them, which no manifest names.

The latter say what a person has written, too, so that an edit makes them anew and no output. Each
has a digest of its own, as a manifest has: JSON in its second line (`sed 2d croissant.json |
sha256sum`), text in its last one (`head -n -1 README.md | sha256sum`).
"""

import errno
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from tokflow.errors import CorruptOutputError, explained
from tokflow.store.manifest import (
    MANIFEST_NAME,
    OWN_FOLDER,
    RUN_NAME,
    FileEntry,
    Manifest,
    checksum,
    has_its_digest,
)

NOT_OF_FILE = {errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE}
"""Errors of reading a file that its removal does not fix."""


def unlisted_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return the names of files in the folder of an output that are neither listed by its manifest
    nor tokflow's own, sorted."""
    listed = {*manifest.files, MANIFEST_NAME, RUN_NAME, *BESIDE}
    listed |= manifest.dropped.keys()  # which a killed process may have left
    found = (of for of in folder.rglob("*") if of.is_symlink() or not of.is_dir())
    return sorted({of.relative_to(folder).as_posix() for of in found} - listed)


def broken_files(folder: Path, manifest: Manifest) -> list[CorruptOutputError]:
    """Return an error for each file that is not what `manifest` says; empty when all are."""
    problems = (broken_file(folder, name, entry) for name, entry in manifest.files.items())
    return [problem for problem in problems if problem]


def broken_file(folder: Path, name: str, entry: FileEntry) -> CorruptOutputError | None:
    """Return how a file of the output in `folder` differs from its entry; None if it does not."""
    path = folder / name
    expected = f"{entry.num_bytes:,} bytes"
    try:
        there = checksum(path)
    except FileNotFoundError:
        found = "no file"
    except OSError as error:
        if error.errno in NOT_OF_FILE:
            return CorruptOutputError(**explained(error, where=path).fields())
        found = error.strerror or type(error).__name__
    else:
        if there == entry:
            return None
        found = f"{there.num_bytes:,}"
        if there.num_bytes == entry.num_bytes:
            expected, found = f"sha256 {entry.sha256[:16]}…", f"{there.sha256[:16]}…"
    return CorruptOutputError(
        where=path,
        expected=expected,
        found=found,
        remedy=f"remove the folder {folder} and run `tokflow run` again",
    )


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

    @staticmethod
    def of_output(path: str) -> "Stamp | None":
        """Return the stamp of a file of an output, None where there is none: its ctime is 0 where
        it is in several, since each that comes or goes changes it."""
        try:
            status = os.stat(path)  # noqa: PTH116 (of many files: a Path costs as much again)
        except OSError:
            return None
        stamp = Stamp.of(status)
        return replace(stamp, ctime_ns=0) if status.st_nlink > 1 else stamp

    def is_still(self, now: "Stamp | None") -> bool:
        """Return whether a file of an output that looked so is as it was; it may have come into
        another since."""
        return now == self or (
            now is not None and now.ctime_ns == 0 and now == replace(self, ctime_ns=0)
        )


arrived: dict[str, tuple[FileEntry, Stamp]] = {}
"""Files that this process has hashed when they were made, found whole or came, by path, and how
they looked then."""


CARD_NAME = f"{OWN_FOLDER}/README.md"
CROISSANT_NAME = f"{OWN_FOLDER}/croissant.json"

BESIDE = (CARD_NAME, CROISSANT_NAME)


def with_digest(text: str) -> bytes:
    """Return text with its digest behind it, in a line that Markdown does not show."""
    lines = f"{text.rstrip()}\n"
    digest = hashlib.sha256(lines.encode()).hexdigest()
    return f"{lines}<!-- sha256 of the lines above: {digest} -->\n".encode()


def is_as_written(name: str, data: bytes) -> bool:
    """Return whether a file of this name has the digest of its content."""
    if name.endswith(".json"):
        return has_its_digest(data)
    lines = data[:-1].rpartition(b"\n")[0].decode(errors="replace")
    return data == with_digest(lines)

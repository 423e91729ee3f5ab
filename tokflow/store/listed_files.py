"""The files of outputs: those that manifests list, compared with what is there, or known again
without reading; equal ones, one file on the disk; ranges that a server copies; `latest` beside the
outputs of an export; and those that people publish beside them, which no manifest names.

An export of the same tokens as another, or as its own version before, has files of equal bytes.
They are compared, and replaced by hard links, before the output takes its name. Nobody may write to
the large files of a finished output, since that would change all of them.

What people publish says what a person has written, too, so that an edit makes it anew and no
output. Each has a digest of its own, as a manifest has: JSON in its second line (`sed 2d
croissant.json | sha256sum`), text in its last one (`head -n -1 README.md | sha256sum`).
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tokflow.errors import CorruptOutputError, explained
from tokflow.store.manifest import (
    MANIFEST_NAME,
    OWN_FOLDER,
    RUN_NAME,
    FileEntry,
    Manifest,
    checksum,
    has_its_digest,
    is_output_name,
)
from tokflow.store.streams import copy_rest

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


LINKED_BYTES = 1 << 16
"""A smaller file is little beside what its output takes anyway, and is never a link."""

FICLONE = 0x40049409
"""The number of this request in Linux's ioctl_ficlone(2)."""

COMPARED_BYTES = 1 << 20
"""Bytes of each of two files that are compared at once."""


class _Listed(msgspec.Struct):
    """The fields of a manifest that are needed here; the others are passed by, which is fast."""

    stage: str
    partition: str | None
    files: dict[str, FileEntry]


def link_file(path: Path, new: Path, entry: FileEntry) -> None:
    """Let `new` be a file of this entry, too, or a copy where the file system has no hard links.

    Raises: FileExistsError where `new` is there, which may be another name of a finished file.
    """
    if not has_linked(path, new):
        with path.open("rb") as source, new.open("xb") as file:
            copy_rest(source, file)
        if problem := broken_file(new.parent, new.name, entry):
            raise problem


def has_linked(path: Path, new: Path) -> bool:
    """Let `new` be another name of a file; return whether it is."""
    try:
        os.link(path, new)
    except OSError:
        return False
    return True


def equal_files(temporary: Path, folder: Path) -> dict[str, list[Path]]:
    """Return files of a dataset that have the bytes of those of an output, which is whole in
    `temporary` and becomes `folder`, by their names: as manifests say, so that bytes must be
    compared.

    They are looked for in the outputs of the same stage and raw file, or in those of all exports,
    and of these among the files that this process has read.
    """
    listed = _read(temporary)
    files = {name: of for name, of in listed.files.items() if of.num_bytes >= LINKED_BYTES}
    if not files or not is_output_name(folder.name):  # it is a segment
        return {}
    known: dict[FileEntry, list[Path]] = {entry: [] for entry in files.values()}
    is_export = listed.partition is None and folder.parent.name != listed.stage
    for place in folder.parents[1].iterdir() if is_export else [folder.parent]:
        outputs: list[Path] = []
        with suppress(OSError):  # removed meanwhile
            outputs = [of for of in place.iterdir() if is_output_name(of.name)]
        for output in outputs:
            with suppress(OSError, msgspec.MsgspecError):  # damaged, or removed meanwhile
                for name, entry in _read(output).files.items():
                    if entry in known:
                        known[entry].append(output / name)
    if is_export:  # it may be what one raw file gave, and was read for it
        below = f"{folder.parents[2]}{os.sep}"
        for path, (entry, _) in list(arrived.items()):
            if entry in known and path.startswith(below):
                known[entry].append(Path(path))
    return {name: known[entry] for name, entry in files.items()}


def link_equal(temporary: Path, folder: Path) -> list[Path]:
    """Let files of an output, which is whole in `temporary` and becomes `folder`, be links to those
    that have equal bytes; return the folders in which names changed.

    All bytes are compared, so that no damaged file takes the place of a whole one. A file stays a
    copy where the file system has no links, or refuses another one.
    """
    changed = []
    for name, paths in equal_files(temporary, folder).items():
        new = temporary / name
        if any(_link(path, new) for path in paths):
            changed.append(new.parent)
        paths.append(new)  # of another name with the same bytes
    return list(dict.fromkeys(changed))


def _read(folder: Path) -> _Listed:
    """Return what the manifest in a folder lists. Raises: OSError, msgspec.MsgspecError."""
    with open(f"{folder}/{MANIFEST_NAME}", "rb") as file:  # noqa: PTH123 (a Path is slow)
        return msgspec.json.decode(file.read(), type=_Listed)


def _link(path: Path, new: Path) -> bool:
    """Let `new` be another name of a file of equal bytes; return whether it has become one."""
    with suppress(OSError):
        there, here = path.stat(), new.stat()
        is_near = there.st_dev == here.st_dev and there.st_size == here.st_size
        if is_near and there.st_ino != here.st_ino and _are_equal(path, new):
            spare = new.with_name(f"{new.name}.link")
            if has_linked(path, spare) or _has_cloned(path, spare):
                spare.replace(new)
                return True
    return False


def _has_cloned(path: Path, new: Path) -> bool:
    """Let `new` share the blocks of a file, where the file system can (Btrfs, XFS): it refuses
    links to files of other users, or more than so many. Return whether it does."""
    with path.open("rb") as source, new.open("xb") as file:
        try:
            fcntl.ioctl(file, FICLONE, source.fileno())
        except OSError:
            new.unlink()
            return False
        os.fchmod(file.fileno(), path.stat().st_mode)
        os.fsync(file)
    return True


def _are_equal(path: Path, other: Path) -> bool:
    with path.open("rb", buffering=0) as one, other.open("rb", buffering=0) as two:
        while data := one.read(COMPARED_BYTES):
            if two.read(COMPARED_BYTES) != data:
                return False
        return not two.read(1)


def names_below(path: Path, folder: Path) -> list[Path]:
    """Return all names of a file below a folder, sorted: one, unless it has links."""
    try:
        number, num_links = path.stat().st_ino, path.stat().st_nlink
    except OSError:
        return []
    if num_links == 1:
        return [path]
    found = []
    for inner, _, _ in os.walk(folder):
        with suppress(OSError), os.scandir(inner) as entries:
            found += [Path(of.path) for of in entries if of.inode() == number]
    return sorted(found)


def freed_bytes(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the bytes that are free when files and folders have been removed one after another:
    those of a file count with its last name, and not where another name stays."""
    left: dict[tuple[int, int], int] = {}
    found = {}
    for path in paths:
        found[path] = 0
        for each in (path, *path.rglob("*")):
            if each.is_file():
                status = each.stat()
                file = status.st_dev, status.st_ino
                left[file] = left.get(file, status.st_nlink) - 1
                found[path] += 0 if left[file] else status.st_size
    return found


LATEST = "latest"
"""Name of the link to the newest output of an export; where the file system has no links, of a file
with the name of that folder."""


def make_latest(path: Path, name: str) -> None:
    """Make a link to the folder `name` beside it or, where none can be made, a file that has that
    name. Raises: OSError where neither can be made."""
    try:
        path.symlink_to(name, target_is_directory=True)
    except OSError:
        path.write_text(name)


def named_by(latest: Path) -> Path | None:
    """Return the folder that `latest` leads to, a link or a file; None where it is neither."""
    if latest.is_symlink():
        return latest.resolve()
    try:
        with latest.open("rb") as file:
            name = os.fsdecode(file.read(100))
    except OSError:
        return None
    return latest.parent.resolve() / name if is_output_name(name) else None


def resolved(path: Path) -> Path:
    """Return a path without links, and with the folder that `latest` names in its place."""
    path = path.resolve()
    for above in (path, *path.parents):
        if above.name == LATEST and (folder := named_by(above)) is not None:
            return folder / path.relative_to(above)
    return path


def path_of_newest(folder: Path) -> Path:
    """Return the path by which any program opens the newest output, in this folder: through
    `latest` where it is a link."""
    latest = folder.parent / LATEST
    return latest if latest.is_dir() else folder


SHORT_BYTES = 8 << 20
"""A shorter range is not copied on the server: S3 wants 5 MiB of each part but the last, and more
of an object of which a range is copied."""


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """Bytes of a new file that are those of another, which was compared with its manifest."""

    start: int
    """In the new file."""
    path: Path
    """The file that has the same bytes, in the folder of its output."""
    start_there: int
    num_bytes: int


_noted: dict[Path, Iterable[CopiedRange]] = {}
"""Copied ranges by new file, until the folder of the file has taken its name."""


def note_copies(new: Path, ranges: Iterable[CopiedRange]) -> None:
    """Keep, until the folder of `new` has its name, which ranges of it are copies; they do not
    overlap, and are not looked at where nobody asks for them."""
    _noted[new] = ranges


def copies_in(new: Path) -> list[CopiedRange]:
    """Return the ranges of a new file that are copies."""
    return list(_noted.pop(new, ()))


def forget_copies(temporary: Path) -> None:
    """Forget what is noted of the files in a folder."""
    for path in list(_noted):  # other threads may note more meanwhile
        if path.is_relative_to(temporary):
            _noted.pop(path, None)

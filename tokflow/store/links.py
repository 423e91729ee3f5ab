"""Links of a store: equal files of outputs, one file on the disk; ranges of files that are ranges
of others, which a server copies; and `latest` beside the outputs of an export.

An export of the same tokens as another, or as its own version before, has files of equal bytes.
They are compared, and replaced by hard links, before the output takes its name. Nobody may write to
the large files of a finished output, since that would change all of them.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokflow.store.listed_files import arrived, broken_file
from tokflow.store.manifest import MANIFEST_NAME, FileEntry, is_output_name
from tokflow.store.streams import copy_rest

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
    try:
        import fcntl
    except ImportError:  # on Windows
        return False
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

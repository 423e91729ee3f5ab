"""New files of an export, hashed while they are written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokflow.store.hashed_file import HashedFile
from tokflow.store.manifest import FileEntry
from tokflow.store.stamp import Stamp

_written: dict[Path, tuple[FileEntry, Stamp]] = {}
"""Files that `new_file` has made, and how they looked then."""


@contextmanager
def new_file(path: Path) -> Iterator[HashedFile]:
    """Open a new file, in a folder that is made if need be."""
    path.parent.mkdir(exist_ok=True)
    with HashedFile(path) as file:
        yield file
    _written[path] = file.entry(), Stamp.of(path.stat())


def take_hashed(folder: Path) -> dict[str, FileEntry]:
    """Return size and sha256 of the files below `folder` that `new_file` has made, by path there;
    but not of those that were written to since. They are forgotten here."""
    paths = [path for path in _written if path.is_relative_to(folder)]
    found = {path: _written.pop(path) for path in paths}
    return {
        path.relative_to(folder).as_posix(): entry
        for path, (entry, stamp) in found.items()
        if path.exists() and Stamp.of(path.stat()) == stamp
    }

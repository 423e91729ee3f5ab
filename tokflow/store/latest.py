"""`latest` beside the outputs of an export: a link to the newest.

Where the file system has no links it is a file with the name of that folder.
"""

import os
from pathlib import Path

from tokflow.store.manifest import is_output_name

LATEST = "latest"


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

"""Files that are not what their manifests say, on this disk or at the URL of their output.

Outputs of which something at their URL is not are made again by a run.
"""

from contextlib import suppress
from pathlib import Path

from tokflow.store.manifest import OWN_FOLDER
from tokflow.store.remote.part_files import alone, part_path

DAMAGE_NAME = f"{OWN_FOLDER}/.damaged"


def drop_cached(path: Path) -> None:
    """Remove the copy of a file, which is not as it should be, from this disk. One that another
    thread or process fetches now stays."""
    path.unlink(missing_ok=True)
    if part_path(path).exists():
        with alone(path) as part:
            if part is not None:
                part.unlink()


def note_damage(folder: Path) -> None:
    """Remember that a file of the output in a folder cannot be fetched."""
    (folder / DAMAGE_NAME).touch()


def forget_damage(folder: Path, put_ns: int) -> None:
    """Forget that a file of the output in a folder could not be fetched before its manifest was put
    once more, at this time, as who makes an output again does."""
    mark = folder / DAMAGE_NAME
    with suppress(FileNotFoundError):
        if mark.stat().st_mtime_ns < put_ns:
            mark.unlink()


def is_known_damaged(folder: Path) -> bool:
    """Return whether a file of the output in a folder could not be fetched, and the output was not
    made again since."""
    return (folder / DAMAGE_NAME).exists()

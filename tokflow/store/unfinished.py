"""Unfinished folders, such as segments: shares of an output, kept until all are there.

<place>/.<fingerprint[:16]>.segments/00003/        one of them
<place>/.<fingerprint[:16]>.segments-here/00003/   one of an output at a URL that stays here
<place>/<fingerprint[:16]>/                        the output, with the files of all
"""

import os
import shutil
from pathlib import Path

from tokflow.store.atomic import is_in_use, is_leftover, remove_empty
from tokflow.store.latest import LATEST, named_by
from tokflow.store.links import freed_bytes
from tokflow.store.manifest import MANIFEST_NAME, is_output_name

SEGMENTS_SUFFIX = ".segments"

BLOCKS_PREFIX = ".blocks-"
"""Prefix of folders that keep blocks of remote raw files while these are read."""


def segments_folder(output: Path) -> Path:
    """Return the folder of the segments of an output that is not finished."""
    return output.parent / f".{output.name}{SEGMENTS_SUFFIX}"


def folder_of_segments_here(output: Path) -> Path:
    """Return the folder of segments that never go to the URL that their output goes to."""
    return output.parent / f".{output.name}{SEGMENTS_SUFFIX}-here"


def are_segments_here(path: Path) -> bool:
    """Return whether it is the folder of segments that never go to a URL."""
    return path.name.endswith("-here") and is_segments_folder(Path(path.name.removesuffix("-here")))


def segment_folder(segments: Path, number: int) -> Path:
    """Return the folder of one segment in the folder of all."""
    return segments / f"{number:05d}"


def is_segments_folder(path: Path) -> bool:
    """Return whether a folder has the name of one of segments, which no partition key has."""
    name = path.name.removeprefix(".").removesuffix(SEGMENTS_SUFFIX)
    return path.name == f".{name}{SEGMENTS_SUFFIX}" and is_output_name(name)


def unfinished_here(folder: Path, *, seconds: float, with_segments: bool = True) -> dict[Path, int]:
    """Return what no run has finished in the folder of a dataset on this disk, and the bytes that
    are free without it; outputs are not entered. Of a store at a URL that tells which segments are
    in use, not here."""
    found: list[Path] = []
    for inner, folders, files in os.walk(folder):
        hidden = (Path(inner, name) for name in (*folders, *files) if name.startswith("."))
        found += [of for of in hidden if _is_unfinished(of, seconds, with_segments=with_segments)]
        folders[:] = [name for name in folders if not _is_written_whole(Path(inner, name))]
    return freed_bytes(sorted(found))


def _is_unfinished(path: Path, seconds: float, *, with_segments: bool) -> bool:
    if are_segments_here(path) or is_segments_folder(path):
        is_known = with_segments or are_segments_here(path)
        return is_known and not is_in_use(path, seconds=seconds)
    return path.name.startswith(BLOCKS_PREFIX) or is_leftover(path, seconds=seconds)


def _is_written_whole(folder: Path) -> bool:
    """Return whether a folder is an output, or what is to become one, or blocks of a raw file, and
    no key's folder."""
    return (
        (folder.name.startswith(".") and folder.suffix == ".tmp")
        or folder.name.startswith(BLOCKS_PREFIX)
        or is_output_name(folder.name)
        or is_segments_folder(folder)
        or are_segments_here(folder)
    )


def remove_output(folder: Path, *, seconds: float) -> None:
    """Remove an output that is not in use, or what is not finished; the manifest first, so that no
    reader takes half of it for whole."""
    if is_in_use(folder, seconds=seconds):
        return  # a build has begun since
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink()
        return
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    latest = folder.parent / LATEST
    if named_by(latest) == folder.resolve():
        latest.unlink()
    shutil.rmtree(folder)
    remove_empty(folder.parents)

"""Unfinished folders, such as segments: shares of an output, kept until all are there.

<place>/.<fingerprint[:16]>.segments/00003/        one of them
<place>/.<fingerprint[:16]>.segments-here/00003/   one of an output at a URL that stays here
<place>/<fingerprint[:16]>/                        the output, with the files of all
"""

import os
import re
import shutil
from pathlib import Path

from tokflow.store.atomic import is_in_use, is_leftover, remove_empty
from tokflow.store.latest import LATEST, named_by
from tokflow.store.links import freed_bytes
from tokflow.store.manifest import MANIFEST_NAME, is_output_name

_SEGMENTS = re.compile(r"\.[0-9a-f]{16}\.segments(-here)?")

BLOCKS_PREFIX = ".blocks-"
"""Prefix of folders that keep blocks of remote raw files while these are read."""


def segments_folder(output: Path) -> Path:
    """Return the folder of the segments of an output that is not finished."""
    return output.parent / f".{output.name}.segments"


def folder_of_segments_here(output: Path) -> Path:
    """Return the folder of segments that never go to the URL that their output goes to."""
    return output.parent / f".{output.name}.segments-here"


def segment_folder(segments: Path, number: int) -> Path:
    """Return the folder of one segment in the folder of all."""
    return segments / f"{number:05d}"


def is_segments_folder(path: Path) -> bool:
    """Return whether a folder has the name of one of segments, which no partition key has."""
    match = _SEGMENTS.fullmatch(path.name)
    return match is not None and not match[1]


def unfinished_here(folder: Path, *, seconds: float, with_segments: bool = True) -> dict[Path, int]:
    """Return what no run has finished in the folder of a dataset on this disk, and the bytes that
    are free without it; neither outputs nor anything hidden is entered. Of a store at a URL that
    tells which segments are in use, not here."""
    found: list[Path] = []
    for inner, folders, files in os.walk(folder):
        for path in (Path(inner, name) for name in (*folders, *files) if name.startswith(".")):
            if match := _SEGMENTS.fullmatch(path.name):
                is_left = (with_segments or match[1]) and not is_in_use(path, seconds=seconds)
            else:
                is_blocks = path.name.startswith(BLOCKS_PREFIX)
                is_left = is_blocks or is_leftover(path, seconds=seconds)
            found += [path] if is_left else []
        folders[:] = [of for of in folders if not of.startswith(".") and not is_output_name(of)]
    return freed_bytes(sorted(found))


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

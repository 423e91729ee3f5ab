"""Folders of segments: shares of an output that are made alone, and kept until all are there.

<place>/.<fingerprint[:16]>.segments/00003/        one of them
<place>/.<fingerprint[:16]>.segments-here/00003/   one of an output at a URL that stays here
<place>/<fingerprint[:16]>/                        the output, with the files of all
"""

import os
import shutil
from pathlib import Path

from tokflow.store.listed_files import broken_file
from tokflow.store.manifest import FileEntry, is_output_name

SEGMENTS_SUFFIX = ".segments"


def segments_folder(output: Path) -> Path:
    """Return the folder of the segments of an output that is not finished."""
    return output.parent / f".{output.name}{SEGMENTS_SUFFIX}"


def folder_of_segments_here(output: Path) -> Path:
    """Return the folder of segments that never go to the URL that their output goes to."""
    return output.parent / f".{output.name}{SEGMENTS_SUFFIX}-here"


def are_segments_here(path: Path) -> bool:
    """Return whether that is the folder of such segments."""
    return is_segments_folder(
        path.with_name(path.name.removesuffix("-here"))
    ) and path.name.endswith("-here")


def segment_folder(segments: Path, number: int) -> Path:
    """Return the folder of one segment in the folder of all."""
    return segments / f"{number:05d}"


def is_segments_folder(path: Path) -> bool:
    """Return whether a folder has the name of one of segments, which no partition key has."""
    name = path.name.removeprefix(".").removesuffix(SEGMENTS_SUFFIX)
    return path.name == f".{name}{SEGMENTS_SUFFIX}" and is_output_name(name)


def link_file(path: Path, new: Path, entry: FileEntry) -> None:
    """Let `new` be a file of this entry, too, or a copy where the file system has no hard links."""
    try:
        os.link(path, new)
    except OSError:
        shutil.copyfile(path, new)
        if problem := broken_file(new.parent, new.name, entry):
            raise problem from None

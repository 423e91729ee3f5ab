"""Ranges of a new file that are ranges of files of outputs: at a URL the server copies them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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

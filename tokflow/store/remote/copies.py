"""Ranges of a new file that are ranges of files of outputs: at a URL the server copies them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokflow.store.manifest import MANIFEST_NAME
from tokflow.store.remote.entry import Piece
from tokflow.store.remote.keys import data_prefix, output_folder
from tokflow.store.remote.places import Place, place_of


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """Bytes of a new file that are those of another, which was compared with its manifest."""

    start: int
    """In the new file."""
    path: Path
    """Of the other, in the folder of its output."""
    start_there: int
    num_bytes: int


_noted: dict[Path, list[CopiedRange]] = {}
"""Of files that were written by this process and are not published yet."""


def note_copies(new: Path, ranges: Iterable[CopiedRange]) -> None:
    """Keep, until `new` is published, which ranges of it are copies; they do not overlap.

    Nothing is kept, and `ranges` not looked at, for a file of this disk alone.
    """
    if place_of(new) is not None:
        _noted[new] = list(ranges)


def take_copies(new: Path) -> dict[int, Piece]:
    """Return the objects that have ranges of a new file, by where they begin in it, and forget
    them; of files in other places none."""
    place, found = place_of(new), {}
    for each in _noted.pop(new, []):
        if place is not None and (key := _key(place, each.path)) is not None:
            stop = each.start_there + each.num_bytes
            found[each.start] = Piece(key, each.start_there, stop)
    return found


def _key(place: Place, path: Path) -> str | None:
    """Return the key of a file of an output in a place; None where it is in another."""
    if place_of(path) != place or (folder := output_folder(place, path)) is None:
        return None
    prefix = data_prefix(place, folder, (folder / MANIFEST_NAME).read_bytes())
    return prefix + path.relative_to(folder).as_posix()

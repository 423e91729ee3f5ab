"""What an export format is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt

from tokflow.exports.part import Part
from tokflow.manifest import FileEntry, Manifest

Arrays = dict[str, npt.NDArray[Any]]

Counts = dict[str, int]
"""`<part>.num_tokens` (padding not counted), `<part>.num_dropped_tokens`, and for formats of
sequences `<part>.num_sequences` and `<part>.num_padding`; of chats, where the format keeps the
loss mask, `<part>.num_loss_tokens`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How one export format is written and read back."""

    description: str
    """One line for people: whose format it is and what the files are called."""
    made_of: Literal["stream", "sequences"]
    """stream: the tokens of a part end to end, not packed; sequences: rows."""
    options: type
    """A frozen dataclass; the fields a user can set beside `format`."""
    write: Callable[[Sequence[Part], Any, Path], Counts]
    """Write all parts into an empty folder; return what was written and what was left out."""
    read: Callable[[Path, Manifest, str], Arrays] | None
    """Return one part's fields, memory-mapped where the format can; None: is never read."""
    keeps: tuple[str, ...]
    """The fields that the files hold; the rest is lost."""
    min_tokens: Callable[[Any], int] = lambda options: 1
    """Of sequences: how few tokens, padding not counted, a row may have and not be left out."""
    known_checksums: Callable[[Sequence[Part]], Mapping[str, FileEntry]] = lambda parts: {}
    """Files, by path, that are copies of files whose checksum is in a manifest already."""
    version: int = 1
    """Raised when the same input would give other bytes."""


def counts_of_rows(part: Part, *, num_sequences: int, num_tokens: int) -> Counts:
    """Return the counts of a part written as rows; what is not in them was dropped."""
    return {
        f"{part.name}.num_sequences": num_sequences,
        f"{part.name}.num_tokens": num_tokens,
        f"{part.name}.num_padding": num_sequences * part.sequence_length - num_tokens,
        f"{part.name}.num_dropped_tokens": part.num_tokens - num_tokens,
    }

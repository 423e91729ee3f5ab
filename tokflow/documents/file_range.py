"""A range of a raw file, and what stands before it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[int | None, int | None]
"""Line and byte offset of a record's first byte in the decompressed file; None without lines."""


@dataclass(frozen=True, slots=True)
class Range:
    """A share of a raw file that is read alone: the records that begin in it.

    Bytes of a text file, whose lines need not begin where it does; row groups of parquet; record
    batches of an Arrow file.
    """

    start: int
    """The first byte, row group or record batch."""
    stop: int
    """The one after the last."""

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"expected 0 <= start <= stop, found {self}")


class Before(NamedTuple):
    """Counts of what stands in a raw file before a range."""

    lines: int
    """0 where the format has no lines."""
    rows: int
    """Documents, and records that are none."""


@dataclass(frozen=True)
class OpenRange:
    """A range that is being read. What stands before it is counted when it is first asked for,
    which only a bad document does."""

    range: Range
    count: Callable[[], Before]

    @cached_property
    def before(self) -> Before:
        """Counts of what stands before the range."""
        return self.count()

    def place(self, place: Place) -> Place:
        """Return the place in the file of one whose line is counted from the range's first."""
        line, byte_offset = place
        return None if line is None else line + self.before.lines, byte_offset


def in_file(place: Callable[[int], Place], within: OpenRange | None) -> Callable[[int], Place]:
    """Return what gives the places in the file; `place` counts the lines of what is read."""
    return place if within is None else lambda index: within.place(place(index))

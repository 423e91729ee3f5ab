"""A range of a raw file, and what stands before it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

Place: TypeAlias = tuple[int | None, int | None]
"""Line and byte offset of a record's first byte in the decompressed file; None without lines. In a
range lines are counted from its first, from 1."""


@dataclass(frozen=True, slots=True)
class Range:
    """A share of a raw file that is read alone: the records that begin in it; or of a group of
    files, some of them.

    Bytes of a text, whose lines need not begin where it does; row groups of parquet;
    record batches of an Arrow file.
    """

    start: int
    """The first byte, row group or record batch."""
    stop: int
    """The one after the last."""

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"expected 0 <= start <= stop, found {self}")


def gathered(sizes: Sequence[int], range_bytes: int) -> tuple[Range, ...]:
    """Return consecutive things of these sizes in ranges of about one size.

    One belongs to the range in which it begins: of the sizes 2, 2, 2 and 2 and ranges of 5 the
    first two are one range, and the last two another.
    """
    total = sum(sizes)
    num_ranges = -(-total // range_bytes)
    starts: dict[int, int] = {}
    begin = 0
    for index, size in enumerate(sizes):
        starts.setdefault(begin * num_ranges // max(1, total), index)
        begin += size
    edges = [*starts.values(), len(sizes)]
    return tuple(map(Range, edges, edges[1:]))


class Before(NamedTuple):
    """Counts of what stands in a raw file before a range."""

    lines: int
    """0 where the format has no lines."""
    rows: int
    """Documents, and records that are none."""


@dataclass(eq=False)
class OpenRange:
    """A range that is being read, once. What stands before it is counted when it is first asked
    for, which only an error does."""

    range: Range
    count: Callable[[], Before]
    num_lines: int = 0
    """Line ends of the range read so far; 0 where the format has no lines."""

    @cached_property
    def before(self) -> Before:
        """Counts of what stands before the range."""
        return self.count()

    def counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the text of the range, its line ends counted."""
        for block in blocks:
            data = np.frombuffer(block, dtype=np.uint8)
            self.num_lines += int(np.count_nonzero(data == ord("\n")))  # 3 times bytes.count
            yield block

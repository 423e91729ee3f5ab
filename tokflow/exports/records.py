"""Records of a file, some at a time: lines of JSON, members of a tar, record batches."""

import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from tokflow.exports.format import Arrays, Portion, damaged_file

T = TypeVar("T")


class Records(Protocol):
    """The records of a file."""

    def taken(self, first: int, num: int | None) -> list[bytes]:
        """Return `num` records, or all from `first` on; fewer at the end of the file."""


@dataclass(eq=False)
class ReadOn(Generic[T]):
    """Records of a file that is read from its beginning alone, as what is compressed is.

    Those asked for next behind the ones before are read on; for others the file is read again."""

    open: Callable[[], Iterator[T]]
    _left: tuple[int, Iterator[T]] | None = field(default=None, init=False)
    _lock: Any = field(default_factory=Lock, init=False, repr=False)

    def taken(self, first: int, num: int | None) -> list[T]:
        """As `Records` has it."""
        with self._lock:
            left, self._left = self._left, None
        position, records = left or (0, self.open())
        if position > first:
            position, records = 0, self.open()
        stop = None if num is None else first - position + num
        found = list(islice(records, first - position, stop))
        if num is not None:
            self._left = (first + num, records)
        return found


@dataclass(eq=False)
class Located:
    """Records of a file, read where they begin; that is found once, as far as it is needed."""

    path: Path
    end_of: Callable[[mmap.mmap, int], int]
    """Return the byte behind the record that begins at a byte, or the end of the file."""
    split: Callable[[bytes], Iterable[bytes]]
    """Return the records of a stretch of the file."""
    _starts: list[int] = field(default_factory=lambda: [0], init=False)
    _lock: Any = field(default_factory=Lock, init=False, repr=False)

    def taken(self, first: int, num: int | None) -> list[bytes]:
        """As `Records` has it."""
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            stop = len(data) if num is None else self._start(first + num, data)
            return [*self.split(data[self._start(first, data) : stop])]

    def _start(self, number: int, data: mmap.mmap) -> int:
        with self._lock:
            starts = self._starts
            while len(starts) <= number and starts[-1] < len(data):
                starts.append(self.end_of(data, starts[-1]))
            return starts[min(number, len(starts) - 1)]


def portions_of_records(
    path: Path,
    num: int,
    at_once: int,
    records: Records,
    load: Callable[[list[bytes]], Arrays],
) -> list[Portion]:
    """Return the portions of a file of `num` records, `at_once` in each."""

    def portion(first: int) -> Portion:
        size = min(at_once, num - first)

        def load_taken() -> Arrays:
            # The last has whatever is left, so that more than there should be is found, too.
            found = records.taken(first, size if first + size < num else None)
            if not found:  # of other numbers than `size` the portion tells
                found_none = f"none from record {first:,} on"
                raise damaged_file(path, expected=f"{num:,} records", found=found_none)
            return load(found)

        return Portion(path, size, load_taken)

    return [portion(first) for first in range(0, num, at_once)]

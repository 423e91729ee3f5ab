"""Records of a file, some at a time: lines of JSON, members of a tar, record batches."""

import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

from tokflow.exports.damage import damaged_file
from tokflow.exports.format import Arrays, Portion
from tokflow.exports.reading import Export
from tokflow.pools.cores import renew_in_forks

T = TypeVar("T")

Taken: TypeAlias = Callable[[int, int | None], list[bytes]]
"""Returns so many records of a file from one on, or all; fewer at its end."""


MAX_LEFT = 8
"""Files that are left open, to be read on."""


@dataclass(eq=False)
class ReadOn(Generic[T]):
    """Records of files that are read from their beginning alone, as what is compressed is.

    Those asked for next behind the ones before are read on; for others the file is read again."""

    open: Callable[[Path], Iterator[T]]
    _left: OrderedDict[Path, tuple[int, Iterator[T]]] = field(init=False)
    """What is next in each file."""
    _lock: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._leave_none()
        renew_in_forks(self, ReadOn._leave_none)  # which would move its parent's place in the file

    def _leave_none(self) -> None:
        self._left, self._lock = OrderedDict(), Lock()

    def taken(self, path: Path, first: int, num: int | None) -> list[T]:
        """Return `num` records of a file, or all from `first` on; fewer at its end."""
        with self._lock:  # so that who asks for the next ones waits, and reads on
            position, records = self._left.pop(path, (0, None))
            if records is None or position > first:
                position, records = 0, self.open(path)
            stop = None if num is None else first - position + num
            found = list(islice(records, first - position, stop))
            if num is not None:
                self._left[path] = first + num, records
            while len(self._left) > MAX_LEFT:
                self._left.popitem(last=False)
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
    _lock: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._renew_lock()
        renew_in_forks(self, Located._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = Lock()

    def taken(self, first: int, num: int | None) -> list[bytes]:
        """Return `num` records, or all from `first` on; fewer at the end of the file."""
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            stop = len(data) if num is None else self._start(first + num, data)
            return [*self.split(data[self._start(first, data) : stop])]

    def _start(self, number: int, data: mmap.mmap) -> int:
        with self._lock:
            starts = self._starts
            while len(starts) <= number and starts[-1] < len(data):
                starts.append(self.end_of(data, starts[-1]))
            return starts[min(number, len(starts) - 1)]


def portions_of_records(
    export: Export,
    name: str,
    num: int,
    at_once: int,
    taken: Taken,
    load: Callable[[Export, list[bytes]], Arrays],
) -> list[Portion]:
    """Return the portions of a file of `num` records, `at_once` in each."""

    def portion(first: int) -> Portion:
        size = min(at_once, num - first)

        def load_taken() -> Arrays:
            # The last has whatever is left, so that more than there should be is found, too.
            found = taken(first, size if first + size < num else None)
            if not found:  # of other numbers than `size` the portion tells
                found_none = f"none from record {first:,} on"
                path = export.folder / name
                raise damaged_file(path, expected=f"{num:,} records", found=found_none)
            return load(export, found)

        return Portion(export.stored, (name,), size, load_taken)

    return [portion(first) for first in range(0, num, at_once)]

"""Records of a file, some at a time: lines of JSON, members of a tar."""

import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from tokflow.pools.cores import renew_in_forks

T = TypeVar("T")

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

    def taken(self, path: Path, rows: slice) -> list[T]:
        """Return records of a file; fewer at its end."""
        with self._lock:  # so that who asks for the next ones waits, and reads on
            position, records = self._left.pop(path, (0, None))
            if records is None or position > rows.start:
                position, records = 0, self.open(path)
            stop = None if rows.stop is None else rows.stop - position
            found = list(islice(records, rows.start - position, stop))
            if rows.stop is not None:
                self._left[path] = rows.stop, records
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

    def taken(self, rows: slice) -> list[bytes]:
        """Return records; fewer at the end of the file."""
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            stop = len(data) if rows.stop is None else self._start(rows.stop, data)
            return [*self.split(data[self._start(rows.start, data) : stop])]

    def _start(self, number: int, data: mmap.mmap) -> int:
        with self._lock:
            starts = self._starts
            while len(starts) <= number and starts[-1] < len(data):
                starts.append(self.end_of(data, starts[-1]))
            return starts[min(number, len(starts) - 1)]

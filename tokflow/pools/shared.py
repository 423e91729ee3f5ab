"""Values that many tasks have in common: each process is sent them once, however many it does."""

import os
import pickle
from functools import lru_cache
from pathlib import Path
from tempfile import mkstemp
from threading import Lock
from typing import Any, Generic, TypeVar
from uuid import uuid4
from weakref import finalize

T = TypeVar("T")

KEPT = 2
"""Values that a process keeps open: those of two outputs whose tasks are mixed."""


class Shared(Generic[T]):
    """A value that tasks carry and do not change.

    It travels inside of one task alone. For several of other processes of this machine it is
    written to a temporary file, which goes with it; one that is never sent is never written.
    """

    def __init__(self, value: T, *, num_tasks: int = 1) -> None:
        self.value = value
        self.is_of_many = num_tasks > 1
        self.key = uuid4().hex
        self._path: str | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_of_many:
            return Shared, (self.value,)
        with self._lock:  # a pool sends from several threads
            if self._path is None:
                descriptor, path = mkstemp(prefix="tokflow-")
                finalize(self, _remove, path, os.getpid())
                with os.fdopen(descriptor, "wb") as file:
                    pickle.dump(self.value, file, protocol=pickle.HIGHEST_PROTOCOL)
                self._path = path
        return _opened, (self._path,)


def _remove(path: str, process: int) -> None:
    """Remove a file that this process wrote, and not one that it was forked from."""
    if os.getpid() == process:
        Path(path).unlink(missing_ok=True)


@lru_cache(KEPT)
def _opened(path: str) -> Shared[Any]:
    with Path(path).open("rb") as file:
        return Shared(pickle.load(file))

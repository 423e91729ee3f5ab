"""The one thing a pool does: make what each of many tasks asks for; tasks on their way to other
processes, what they have in common, and what came of them."""

import io
import os
import pickle
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import AbstractContextManager, suppress
from copyreg import dispatch_table
from functools import lru_cache
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar
from uuid import uuid4
from weakref import finalize

from tokflow.errors import TokflowError, explained
from tokflow.store.stored_outputs import reduced_for_machines

T = TypeVar("T")
R = TypeVar("R")

Advance: TypeAlias = Callable[[int, int], None]
"""Called with the documents and the bytes of text that a task has just done."""

Make: TypeAlias = Callable[[T, Advance], R]
"""A function that does one task, and says meanwhile how far it is."""


Finished: TypeAlias = Generator[tuple[T, R | Exception], None, None]
"""Tasks, each with what came of it."""


def ignore(num_documents: int, num_bytes: int) -> None:
    """Do nothing with reported progress."""


class LostWorkerError(TokflowError):
    """A process ended before its task was done, and so did another that tried it again."""


class Pool(Protocol):
    """A place where tasks run."""

    is_here: bool
    """Whether it is this machine, on whose disk tasks find what earlier tasks have left."""

    def start(self) -> None:
        """Get ready for tasks that are sure to come."""

    def map(
        self, make: Make[T, R], tasks: Iterable[T], *, advance: Advance = ignore
    ) -> Finished[T, R]:
        """Yield each task with what `make` returned for it, in the order in which they finish.

        An exception of a task is its result, and stops no other task. Tasks are taken from the
        iterable as workers become free. Closing what it returns, or an exception where its results
        are used, stops what is under way. `advance` is called in this thread or in a task's.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class InProcess(AbstractContextManager["InProcess"]):
    """This process, one task after another."""

    is_here = True

    def start(self) -> None:
        """Import nothing before it is needed."""

    def map(
        self, make: Make[T, R], tasks: Iterable[T], *, advance: Advance = ignore
    ) -> Finished[T, R]:
        """Yield the results in the order of the tasks; see `Pool.map`."""
        for task in tasks:
            result: R | Exception
            try:
                result = make(task, advance)
            except Exception as error:
                result = error
            yield task, result

    def __exit__(self, *error: object) -> None:
        """Leave nothing open."""


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

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_of_many:
            return Shared, (self.value,)
        if self._path is None:
            descriptor, path = mkstemp(prefix="tokflow-")
            finalize(self, _remove, path, os.getpid())
            with os.fdopen(descriptor, "wb") as file:
                pickle.dump(self.value, file, protocol=pickle.HIGHEST_PROTOCOL)
            self._path = path
        return _shared_in, (self._path,)


def _remove(path: str, process: int) -> None:
    """Remove a file that this process wrote, and not one that it was forked from."""
    if os.getpid() == process:
        Path(path).unlink(missing_ok=True)


@lru_cache(KEPT)
def _shared_in(path: str) -> Shared[Any]:
    with Path(path).open("rb") as file:
        return Shared(pickle.load(file))


def answer(packed: bytes, advance: Advance) -> Any:
    """Do a task that came as the pickle of a function and its argument; return what came of it.

    An exception, and each in a list of results, is a value that can be sent; KeyboardInterrupt
    alone is raised.
    """
    try:
        try:
            make, task = pickle.loads(packed)
        except Exception as error:
            raise TokflowError(
                where="a worker process",
                expected="a task that it can open",
                found=f"{type(error).__name__}: {error}",
                remedy="functions and classes of a task are to be of a module that can be "
                "imported, not of a script or a notebook; else run it in one process (--jobs 1)",
            ) from error
        result = make(task, advance)
        if isinstance(result, list):  # of what came of several
            return [sendable(each) if isinstance(each, Exception) else each for each in result]
        return result
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, and the panic of a library in Rust
        return sendable(error)


def sendable(error: BaseException) -> Exception:
    """Return an exception that can go to the other process: if need be, another in its place."""
    with suppress(Exception):
        pickle.loads(pickle.dumps(error))
        if isinstance(error, Exception):
            return error
    return explained(error, where="a worker process")


Share: TypeAlias = Callable[[Shared[Any]], None]


def packed_for_machines(value: object, share: Share | None = None) -> bytes:
    """Return a pickle that another machine may open: a path that stands for a URL becomes there
    the path in its own cache.

    `share` is called with each value shared with other tasks, which `take_shared` must have
    taken on that machine; without it they travel inside.
    """

    def reduced(shared: Shared[Any]) -> Any:
        if share is None or not shared.is_of_many:
            return Shared, (shared.value,)
        share(shared)
        return _taken, (shared.key,)

    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**dispatch_table, type(Path()): reduced_for_machines, Shared: reduced}
    pickler.dump(value)
    return file.getvalue()


_here: dict[str, Shared[Any]] = {}
"""Shared values of the task that this process has, by key."""


def take_shared(keys: Collection[str], fetch: Callable[[str], bytes]) -> None:
    """Open the shared values of a task, of which `fetch` returns the pickles; those that the last
    task had are open."""
    taken = {key: _here.get(key) or Shared(pickle.loads(fetch(key))) for key in keys}
    _here.clear()
    _here.update(taken)


def _taken(key: str) -> Shared[Any]:
    return _here[key]

"""The one thing a pool does: make what each of many tasks asks for."""

from collections.abc import Callable, Generator, Iterable
from typing import Protocol, Self, TypeAlias, TypeVar

from tokflow.errors import TokflowError

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


class InProcess:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing open."""

"""Requests that are under way at the same time, of all threads of a process together."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from tokflow.store.store import AT_ONCE

T = TypeVar("T")
R = TypeVar("R")


def for_each(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what `function` returns for each item, several at once; it must not call this.

    Raises: what it raises, of the first item in order, when all have been tried.
    """
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    futures = [_threads(os.getpid()).submit(function, item) for item in items]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        raise error
    return [future.result() for future in futures]


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process, which a forked one does not have."""
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="requests")

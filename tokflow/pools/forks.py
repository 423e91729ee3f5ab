"""Objects that a forked process renews: it has none of the threads whose locks it has copied."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_renewals: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def renew_in_forks(each: T, renew: Callable[[T], object]) -> None:
    """Let every process that is forked while `each` lives call `renew(each)` before all else.

    A lock of `each` may be held there by a thread that the process has not, and the place in an
    open file is that of all processes together: `renew` uses none of them, but takes new ones.
    """
    _watch_forks()
    _renewals[each] = renew


@cache
def _watch_forks() -> None:
    """Have all renewed in forked processes; asked for once, since that cannot be taken back."""
    os.register_at_fork(after_in_child=_renew_all)


def _renew_all() -> None:
    for each, renew in list(_renewals.items()):
        renew(each)

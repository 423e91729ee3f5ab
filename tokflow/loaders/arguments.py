"""Checks of arguments: what is kept of a number is an int, as JSON and caches take it."""

from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from tokflow.errors import ConfigError

T = TypeVar("T")


def integer(name: str, value: Any) -> int:
    """Return an integer of any library as an int; a bool is none. Raises: ConfigError."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ConfigError(
            where=name,
            expected="an integer",
            found=f"{value!r}, of {type(value).__name__}",
            remedy="give a whole number such as 1; 1.0, '1' and True are none",
        )
    return int(value)


def optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
    """Return None as it is, and all else as the check does. Raises: ConfigError."""
    return None if value is None else check(name, value)


def boolean(name: str, value: Any) -> bool:
    """Return a bool, also one of numpy; a text such as `no` is none. Raises: ConfigError."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(
            where=name,
            expected="True or False",
            found=f"{value!r}, of {type(value).__name__}",
            remedy="give one of them",
        )
    return bool(value)

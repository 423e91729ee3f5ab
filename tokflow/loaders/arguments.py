"""Checks of arguments that are numbers: what is kept of them is an int, as JSON and caches take."""

from numbers import Integral
from typing import Any

from tokflow.errors import ConfigError


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


def optional_integer(name: str, value: Any) -> int | None:
    """Return an integer as an int, and None as it is. Raises: ConfigError."""
    return None if value is None else integer(name, value)

"""How a difference is said."""

from itertools import zip_longest
from typing import Any


class DifferenceError(AssertionError):
    """tokflow made something else than the model."""


def same(where: str, *, expected: Any, found: Any) -> None:
    """Raise DifferenceError, which shows the first place, unless both are equal."""
    if expected == found:
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [k for k in {**expected, **found} if expected.get(k) != found.get(k)]
        where += f": {keys[0]!r}"
        expected, found = expected.get(keys[0]), found.get(keys[0])
    if isinstance(expected, list | tuple | bytes | str) and isinstance(found, type(expected)):
        pairs = enumerate(zip_longest(expected, found))
        at = next(number for number, (left, right) in pairs if left != right)
        sizes = f"{len(expected)} and {len(found)} long, from {at}"
        window = slice(max(0, at - 2), at + 8)
        raise DifferenceError(
            f"{where} ({sizes}): expected {expected[window]!r}, found {found[window]!r}"
        )
    raise DifferenceError(f"{where}: expected {expected!r}, found {found!r}")

"""Names of tokens as texts spell them."""

import re
from collections.abc import Iterable


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the names, the longest first where several begin alike.

    Without a name it matches nowhere.
    """
    longest_first = sorted(filter(None, names), key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

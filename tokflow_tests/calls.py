"""Operations that code takes, counted: unlike its time they are the same on every machine."""

import cProfile
from collections.abc import Callable


def num_calls(work: Callable[[], object]) -> int:
    """Return how many calls of functions in Python, and steps of generators, `work` takes."""
    profile = cProfile.Profile(subcalls=False, builtins=False)
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())

"""Texts on which tokenizers go wrong."""

import os
import random
import unicodedata
from functools import cache
from pathlib import Path

from tokflow_tests.fuzz.texts import EMOJI, LONG, SIGNS, SPACES, SPECIALS, WORDS

NUM_AWKWARD_STRINGS = 20_000


@cache
def awkward_strings() -> tuple[str, ...]:
    """Return 20,000 strings, the same at each call, 1 MB of UTF-8.

    First a stretch of single code points (each general category, each plane), then long runs,
    then random mixtures of everything.
    """
    choose = random.Random("awkward")
    points = _code_points(choose)
    runs = [piece * times for piece in LONG for times in (2, 3, 17, 300, 1_000)]
    pools = (EMOJI, WORDS, WORDS, SPACES, SPACES, SIGNS, SPECIALS, points)
    strings = ["", *points, *runs]
    while len(strings) < NUM_AWKWARD_STRINGS:
        pieces = (choose.choice(choose.choice(pools)) for _ in range(choose.randint(1, 20)))
        strings.append("".join(pieces))
    return tuple(strings)


def _code_points(choose: random.Random) -> list[str]:
    """Return up to 40 code points of each general category and 16 of each plane, but surrogates."""
    by_category: dict[str, list[int]] = {}
    for point in range(0x30000):  # all categories are there
        by_category.setdefault(unicodedata.category(chr(point)), []).append(point)
    del by_category["Cs"]  # which no UTF-8 text holds
    found: set[int] = set()
    for _, points in sorted(by_category.items()):
        found.update(choose.sample(points, min(40, len(points))))
    for first in range(0, 0x110000, 0x10000):
        some = choose.sample(range(first + 2, first + 0xD800), 12)
        found |= {first, first + 1, first + 0xFFFE, first + 0xFFFF, *some}
    return [chr(point) for point in sorted(found)]


def find_shared() -> Path:
    """Return where the corpora and tokenizers are that are too large for the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("TOKFLOW_SHARED", beside))

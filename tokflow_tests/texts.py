"""Texts on which tokenizers go wrong."""

import os
import random
import unicodedata
from functools import cache
from pathlib import Path

NUM_AWKWARD_STRINGS = 20_000

_FAMILY = "👩\u200d👩\u200d👧\u200d👦"
_EMOJI = ("👍", "👍🏽", _FAMILY, "🏳️\u200d🌈", "🇩🇪🇫", "❤\ufe0f", "1\ufe0f\u20e3", "\u200d", "\ufe0f")
_WORDS = (
    "a", "the", "Ünïcödé", "naïve", "don't", "I'LL", "'s", "’ve", "'D", "straße", "ſ", "ﬁ", "İi",
    "snake_case", "camelCase", "日本語", "한국어", "ภาษาไทย", "हिन्दी", "עברית", "العربية", "ꙮ",
)  # fmt: skip
_NUMBERS = (
    "0", "12", "123", "1234567890", "3.14", "1,000", "٣٤٥", "१२", "½", "Ⅷ", "²", "𝟘", "１２",
)  # fmt: skip
_SPACES = (
    " ", "  ", "   ", " " * 9, "\t", "\t\t", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", " \n", "\n ",
    "\u00a0", "\u2003", "\u3000", "\u0085", "\u1680", "\u2028", "\u200b", "\ufeff", "\x0b",
)  # fmt: skip
_MARKS = (
    ".", "...", "!?", "#$%", "__", "--", "—", "$", "€", "+", "^", "`", "~", "|", "\\", '"', "<|",
    "|>", "{}", "\x00", "\x00\x00", "\x1f", "\x7f", "\ufffd", "e\u0301", "Z\u0351\u036b\u0343",
)  # fmt: skip
_SPECIALS = (
    "<|endoftext|>", "<|endof", "text|>", "<|endoftext|", "</s>", "<s>", "<unk>", "[CLS]",
    "<|im_start|>", "<|fim_prefix|>", "<|eos|>",
)  # fmt: skip
_RUN_OF = (
    "a", "ab", " ", "\n", "\r\n", "\t", "1", "!", "é", "e\u0301", "\u0300", "👍", "中", "=", "\x00",
)  # fmt: skip


@cache
def awkward_strings() -> tuple[str, ...]:
    """Return 20,000 strings, the same at each call, 1 MB of UTF-8.

    First a stretch of single code points (each general category, each plane), then long runs,
    then random mixtures of everything.
    """
    choose = random.Random("awkward")
    points = _code_points(choose)
    runs = [piece * times for piece in _RUN_OF for times in (2, 3, 17, 300, 1_000)]
    pools = (_EMOJI, _WORDS, _NUMBERS, _SPACES, _SPACES, _MARKS, _SPECIALS, points)
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

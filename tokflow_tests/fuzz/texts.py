"""Random texts of all Unicode planes, each decided by a `random.Random` alone."""

from random import Random

NEW_LETTERS = (
    range(0x323B0, 0x3347A),  # CJK extension J
    range(0x18CFF, 0x18D00),
    range(0x18D09, 0x18D1F),
    range(0x18D80, 0x18DF3),
    range(0x11DB0, 0x11DDC),
    range(0x16EA0, 0x16EB9),
    range(0x16EBB, 0x16ED4),
    range(0x1E6C0, 0x1E6DF),
    range(0x105C0, 0x105F4),
    range(0xA7CB, 0xA7DD),
    range(0x1C89, 0x1C8B),
)
"""Letters of Unicode 16 and 17, which not all libraries take for letters."""

OLD_LETTERS = (
    range(0x41, 0x5B), range(0x61, 0x7B), range(0xC0, 0x180), range(0x391, 0x3CA),
    range(0x410, 0x450), range(0x5D0, 0x5EB), range(0x627, 0x64B), range(0x905, 0x93A),
    range(0xE01, 0xE31), range(0x3041, 0x3097), range(0x4E00, 0x6000), range(0xAC00, 0xAD00),
    range(0x1D400, 0x1D455), range(0x20000, 0x20100), range(0x30000, 0x30100),
)  # fmt: skip

MARKS = (range(0x300, 0x370), range(0x1AB0, 0x1ACF), range(0x20D0, 0x20F1), range(0xFE00, 0xFE10))
NUMBERS = (range(0x30, 0x3A), range(0x660, 0x66A), range(0xB2, 0xB4), range(0x2150, 0x2189),
           range(0x966, 0x970), range(0x1D7CE, 0x1D800), range(0x16AC0, 0x16ACA))  # fmt: skip
CONTROLS = (range(0x20), range(0x7F, 0xA0), range(0xFFF9, 0xFFFE), range(0xE0000, 0xE0080))

WORDS = (
    "the", "a", "and", "don't", "I'LL", "we've", "'s", "’re", "ſ", "naïve", "Straße", "ﬁn", "İ",
    "snake_case", "camelCaseHTTP", "def f(x):", "return", "http://a.b/c?d=1&e=%20", "日本語",
    "한국어", "ภาษาไทย", "हिन्दी", "עברית", "العربية", "Ünïcödé", "'D", "ꙮ", "1,000.50", "3.14e-10",
    "0xFF", "0", "123", "1234567890", "½", "²", "٣٤٥", "१२", "Ⅷ", "𝟘", "１２",
)  # fmt: skip
SPACES = (
    " ", "  ", "   ", " " * 9, "\t", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", "\u00a0",
    "\u2003", "\u3000", "\u0085", "\u1680", "\u2028", "\u2029", "\u200b", "\u200d", "\ufeff",
    "\x0b",
)  # fmt: skip
SIGNS = (
    ".", "...", "!?", "#$%", "__", "--", "—", "$", "€", "+", "^", "`", "~", "|", "\\", '"', "'",
    ",", "<|", "|>", "{}", "[]", "/", "//\n", "\x00", "\x00\x00", "\x1f", "\x7f", "\ufffd",
    "\ufffd\ufffd", "\uffff", "e\u0301", "Z\u0351\u036b\u0343", "\u202e", "\ue000", "\U0010ffff",
)  # fmt: skip
EMOJI = (
    "👍", "👍🏽", "👩\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "🇩🇪🇫", "❤\ufe0f", "1\ufe0f\u20e3",
    "\ufe0f",
)  # fmt: skip
SPECIALS = (
    "<|endoftext|>", "<|bos|>", "<|im_end|>", "<tool>", "<|endof", "text|>", "<|endoftext|",
    "<eos>", "<|endofprompt|>", "<|fim_prefix|>", "</s>", "<s>", "<unk>", "[CLS]",
)  # fmt: skip
LONG = (
    " ", "\n", "\r\n", "\t", "a", "ab", "1", "!", "=", "é", "e\u0301", "\u0300", "中", "👍", "\x00",
)  # fmt: skip
"""Pieces of very long words and runs."""


def random_text(random: Random) -> str:
    """Return a text of mostly a few pieces, sometimes of none or of many."""
    shape = random.random()
    if shape < 0.07:
        return ""
    if shape < 0.12:
        return _run(random)
    size = random.choice((1, 2, 3, 5, 8, 12, 20, 40)) if shape < 0.97 else 250
    kinds = random.choices([*_KINDS], weights=_KINDS.values(), k=random.choice((1, 2, 3, 6)))
    pieces = [random.choice(kinds)(random) for _ in range(size)]
    if random.random() < 0.05:  # where BOS and EOS are looked for
        pieces[random.choice((0, -1))] = random.choice(SPECIALS[:2])
    return "".join(pieces)


def _run(random: Random) -> str:
    """Return a very long word, or a very long run of spaces or of anything."""
    times = random.choice((2, 17, 100, 300, 1_000))
    return random.choice(LONG) * times + random.choice(("", " end", "\n"))


def _of(ranges: tuple[range, ...], random: Random) -> str:
    return chr(random.choice(random.choice(ranges)))


def _plane(random: Random) -> str:
    """Return a code point of any plane, assigned or not; surrogates are no text."""
    while True:
        point = (random.randrange(17) << 16) | random.randrange(0x10000)
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def _new_beside_old(random: Random) -> str:
    """Return a new letter beside another letter, number or mark, where a merge may cross both."""
    kinds = (OLD_LETTERS, OLD_LETTERS, NEW_LETTERS, NUMBERS, MARKS)
    letters = [_of(NEW_LETTERS, random), _of(random.choice(kinds), random)]
    random.shuffle(letters)
    return "".join(letters)


_KINDS = {
    lambda random: random.choice(WORDS): 6,
    lambda random: random.choice(SPACES): 6,
    lambda random: random.choice((*SIGNS, *EMOJI)): 3,
    lambda random: random.choice(SPECIALS): 1,
    lambda random: _of(OLD_LETTERS, random): 4,
    lambda random: _of(NUMBERS, random): 2,
    lambda random: _of(MARKS, random): 2,
    lambda random: _of(CONTROLS, random): 1,
    lambda random: chr(random.randrange(0x20, 0x7F)): 5,
    _plane: 2,
    _new_beside_old: 1,
}
"""What a text is made of, and how often."""

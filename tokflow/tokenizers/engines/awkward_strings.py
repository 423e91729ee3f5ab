"""Strings on which tokenizers differ: each engine must agree with its reference on all of them."""

from itertools import product

_SHORT_STRINGS = (
    "a", "Z", "word", "don't", "I'LL", "'s", "’s", "\u00e9", "e\u0301", "\u00df", "\u0130", "ſ", "ﬁ",
    "0", "12", "123", "1234567", "٣٤٥", "½", "Ⅷ", "²", "१२", "𝟘",
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u0085",
    "\u200b", "\u200d", "\u2028", "\ufeff", "\u1680", "\x00", "\x1f", "\x7f", "\x0b", "\x0c",
    ".", "...", "!?", "#$%", "_", "__init__", "-", "—", "$", "€", "+", "^", "`", "~", "|", "<|", "|>",
    "中文", "日本語", "한국어", "ไทย", "हिन्दी", "עברית", "العربية", "Ω", "ж", "ა", "\u0f0b",
    "👍", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "1️⃣", "\U0001d54f", "\U00020000", "\ue000", "\U0010ffff", "\ufffd",
    "\u0300", "\u0e33", "\u093f", "\u20dd", "\u0600", "\u061c", "ǅ", "ʰ", "ª", "\u2160",
)  # fmt: skip

_SENTENCES = (
    "",
    "Hello, world!",
    " leading and trailing ",
    "\n\n  indented\n\tcode = {'a': 1}\n",
    "def f(x):\r\n    return x  # it's\r\n\r\n",
    "<|endoftext|>",
    "before<|endoftext|>after",
    "<|endoftext|><|endoftext|>",
    "<|endof", "text|>",
    "</s>", "<s>", "<unk>", "[CLS] [SEP]", "<|im_start|>user\n", "<|fim_prefix|>",
    " " * 17, " " * 300, "\n" * 40, "\t" * 9 + "x", " \n \n ", "x" + " " * 5 + "\n" + " " * 5 + "y",
    "a" * 400, "ab" * 200, "1" * 100, "!" * 100, "é" * 100, "👍" * 20, "=" * 80,
    "aaaaAAAA1111aaaa", "camelCaseWithHTTPServer2Go", "snake_case_name", "https://a.b/c?d=e&f=%20",
    "I'm you're he's we'll they'd o'clock I'M YOU'RE", "''''s", "'t 't't",
    "3.14159 1,000,000 1e-10 0xFF 1_000", "a1b2c3", "１２３", "x²+y³",
    "Zalgo: Z\u0351\u036b\u0343\u036aa\u0301\u0310l\u0301g\u0302o\u0304",
    "\u202eright to left\u202c", "مرحبا بالعالم 123", "ÅÄÖ åäö", "Straße", "ﷺ", "ꙮ", "𒐫",
    "{\"k\": [1, 2.5, null, \"\\u00e9\"]}", "<html><br/>&nbsp;</html>", "$x_{1}^{2} \\frac{a}{b}$",
)  # fmt: skip

AWKWARD_STRINGS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *_SENTENCES,
            *_SHORT_STRINGS,
            *(left + right for left, right in product(_SHORT_STRINGS, _SHORT_STRINGS[:60:7])),
            *(left + right for left, right in product(_SHORT_STRINGS[:60:5], _SHORT_STRINGS)),
            *(f"{short}{short} {short}\n{short}  {short}" for short in _SHORT_STRINGS),
        )
    )
)
"""About two thousand strings of one to four hundred characters, the same on every machine."""

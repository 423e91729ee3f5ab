"""The equality gate: the fast engine is used only where it gives the reference's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import pairwise, product
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import TokenizerError, TokflowError
from tokflow.store.integrity import clear_when_damaged
from tokflow.store.tables import text_buffers, to_arrow, to_texts
from tokflow.tokenizers.engines import Encoded, Engine, InText, panics_as_errors
from tokflow.tokenizers.engines.chunks import NEAR, WIDE, ChunkedEngine, CutRule, find_cut_rule
from tokflow.tokenizers.engines.code_points import RoutedEngine, code_points_for_reference
from tokflow.tokenizers.engines.fast import open_gigatoken
from tokflow.tokenizers.engines.reference import MODEL_NAME, open_reference, unscored_pieces
from tokflow.tokenizers.tokenizer import Tokenizer, scan_tokenizer_json

EngineChoice = Literal["auto", "gigatoken", "reference"]

SAMPLE_TOKENS = 500
"""Longest of the three documents per batch that the reference encodes too, with the head of a
longer one. At 1.5 million tokens a second they take 1 ms, where the fast engine takes 20 ms for
a batch of 2 MB."""

VERDICT = "gigatoken was wrong: "
"""The beginning of the reason where the store keeps a verdict."""

GOLDEN_RATIO = 0.618034
"""Steps of this size never fall on the same places of a batch again."""

AROUND_ADDED_TOKENS = (
    ("", ""), ("a", "b"), (" ", " "), ("  ", "  "), ("\n", "\n"), ("1", "2"), ("_", "."), ("é", ""),
)  # fmt: skip
"""Texts around an added token: it may take spaces with it, or count as a whole word only."""


class EngineDiffersError(TokflowError):
    """The fast engine gave other tokens than the reference; what it made must not be kept."""


@dataclass(kw_only=True)
class GatedEngine:
    """An engine together with the proof that it may be used."""

    engine: Engine
    reason: str
    """Why this engine runs, for the metadata."""
    reference: Engine | None = None
    """Engine to compare with; None if `engine` is the reference itself."""
    _num_batches: int = 0

    @property
    def name(self) -> str:
        """The library that makes the tokens."""
        return self.engine.name

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, a sample of them compared with the reference.

        Raises: EngineDiffersError at the first difference.
        """
        encoded = self.engine.encode(texts)
        if self.reference is None:
            return encoded
        # Some short documents, spread over the batch, and the head of a long one.
        lengths = np.diff(encoded.offsets)
        short = np.flatnonzero((lengths > 0) & (lengths <= SAMPLE_TOKENS))
        long = np.flatnonzero(lengths > SAMPLE_TOKENS)
        self._num_batches += 1
        indices = np.unique(short[self._places(len(short), 3)])
        # Of a long one the first characters, without touching the rest of it.
        offsets, data = text_buffers(texts)
        some = long[self._places(len(long), 1)]
        spans = zip(offsets[some].tolist(), offsets[some + 1].tolist(), strict=True)
        cut = [data[at : min(stop, at + 2 * SAMPLE_TOKENS)].tobytes() for at, stop in spans]
        heads = to_texts([head.decode(errors="ignore") for head in cut])
        of_heads = self.engine.encode(heads).documents() if len(heads) else []
        sample = pa.concat_arrays([texts.take(to_arrow(indices)), heads])
        got = [encoded.document(int(index)) for index in indices] + of_heads
        expected, name = self.reference.encode(sample), self.reference.name
        if difference := _difference(sample, got, expected, name):
            raise EngineDiffersError(
                where=self.engine.name,
                expected=f"the tokens of {name}",
                found=difference,
                remedy="set `tokenizer.engine: reference`",
            )
        return encoded

    def _places(self, num_documents: int, num_places: int) -> npt.NDArray[np.int64]:
        """Return places spread evenly over the documents, at other positions in the next batch."""
        spread = (np.arange(num_places) / num_places + GOLDEN_RATIO * self._num_batches) % 1
        places: npt.NDArray[np.int64] = (spread * num_documents).astype(np.int64)
        return places if num_documents else places[:0]


@lru_cache(maxsize=4)
def open_engine(
    tokenizer: Tokenizer, *, choice: EngineChoice = "auto", in_text: InText = "ordinary"
) -> GatedEngine:
    """Return the engine to use, kept for the next call with the same arguments.

    `auto` takes gigatoken if it encodes the awkward strings, and strings with the added tokens of
    this tokenizer, exactly as the reference does, else the reference; `gigatoken`
    raises where `auto` would turn to the reference. Text around characters that the two are known
    to split differently goes to the reference either way.

    Raises: TokenizerError.
    """
    whole = open_reference(tokenizer, in_text=in_text)
    if tokenizer.kind == "bytes":
        return GatedEngine(engine=whole, reason="the bytes need no other engine")
    tried = partial(_tried_rule, tokenizer, in_text, whole)
    rule = cache(partial(tried, WIDE))
    chunked = partial(ChunkedEngine, find_rule=rule, dtype=tokenizer.dtype)
    reference = chunked(whole)
    if choice == "reference":
        return GatedEngine(engine=reference, reason="asked for by engine: reference")
    strings = (*AWKWARD_STRINGS, *_added_token_strings(tokenizer))
    difference = None if tokenizer.verdict is None else VERDICT + tokenizer.verdict
    if difference is None:
        try:
            with panics_as_errors():
                gigatoken = open_gigatoken(tokenizer, in_text=in_text)
                code_points = code_points_for_reference(tokenizer)
                near = cache(lambda: tried(NEAR) or rule())
                fast = chunked(RoutedEngine(gigatoken, whole, code_points, near))
                difference = _first_difference(strings, fast, reference)
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            difference = f"gigatoken does not take this tokenizer: {first_line}"
    if difference is None:
        reason = f"equal to {reference.name} on {len(strings):,} awkward strings"
        return GatedEngine(engine=fast, reference=reference, reason=reason)
    if choice == "gigatoken":
        where = "tokenizer.engine: gigatoken"
        expected = f"the tokens of {reference.name}"
        remedy = "set tokenizer.engine: auto to use the reference where they differ"
        raise TokenizerError(where=where, expected=expected, found=difference, remedy=remedy)
    return GatedEngine(engine=reference, reason=difference)


clear_when_damaged.append(open_engine.cache_clear)


def _tried_rule(
    tokenizer: Tokenizer, in_text: InText, whole: Engine, widest: CutRule
) -> CutRule | None:
    """Return the rule by which texts are cut; None also if cutting the awkward strings, and those
    with added tokens, would change a token in spite of the proof."""
    rule = find_cut_rule(tokenizer, in_text=in_text, widest=widest)
    if rule is None:
        return None
    strings = (*AWKWARD_STRINGS, *_added_token_strings(tokenizer))
    texts = [f"ab {string} cd{string} é {string}ef g" for string in strings]
    cut = ChunkedEngine(whole, lambda: rule, dtype=tokenizer.dtype, chunk_bytes=1, chunked_bytes=0)
    return rule if _first_difference(texts, cut, whole) is None else None


def _added_token_strings(tokenizer: Tokenizer) -> list[str]:
    """Return strings that contain the tokenizer's own added tokens, special or not.

    gigatoken 0.10.0 finds a `single_word` token inside words too, and of two tokens takes the
    longer where the reference takes the special one.
    """
    names = list(tokenizer.special_tokens)
    if tokenizer.kind == "sentencepiece":
        model = (tokenizer.folder / MODEL_NAME).read_bytes()
        names = list(dict.fromkeys((*names, *unscored_pieces(model))))
    elif fields := scan_tokenizer_json(tokenizer.folder):
        names = [token["content"] for token in fields.get("added_tokens") or []]
    return [
        *(before + name + after for name in names for before, after in AROUND_ADDED_TOKENS),
        *(name + name for name in names),
        *(first + second for first, second in pairwise(names)),
    ]


def _first_difference(strings: Sequence[str], fast: Engine, reference: Engine) -> str | None:
    texts = to_texts(strings)
    got = fast.encode(texts).documents()
    return _difference(texts, got, reference.encode(texts), reference.name)


def _difference(
    texts: pa.LargeStringArray,
    got: Sequence[npt.NDArray[np.unsignedinteger]],
    expected: Encoded,
    reference: str,
) -> str | None:
    """Describe the first text whose tokens are not the expected ones; None if there is none."""
    for index, (token_ids, wanted) in enumerate(zip(got, expected.documents(), strict=True)):
        if not np.array_equal(token_ids, wanted):
            return (
                f"{texts[index].as_py()[:40]!r} became {token_ids[:8].tolist()} with gigatoken "
                f"and {wanted[:8].tolist()} with {reference}"
            )
    return None


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

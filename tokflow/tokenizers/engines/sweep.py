"""Compare how gigatoken and the reference split text, on every code point there is.

The tokens of a vocabulary tell nothing of a split where no merge crosses it. So another vocabulary
takes its place, with the same pattern: its only merges are of the last byte of one character with
the first byte of the next, whatever they are. A place that is split then shows in the tokens.
"""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import msgspec
import numpy as np

from tokflow.store.arrow import to_texts
from tokflow.tokenizers.engines.fast import open_gigatoken
from tokflow.tokenizers.engines.protocol import Engine
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.patterns import byte_level_model
from tokflow.tokenizers.tokenizer import Tokenizer, read_tokenizer_json, write_ranks

CONTEXTS = ("a{}a", "1{}1", ".{}.", "a{}A", "A{}Aa", "'{}a")
"""Texts in which a code point is tried. Together they tell letters, marks, numbers, white space,
punctuation and symbols, and what is none of these. Of letters, `a{}A` tells upper case (a piece
ends before it) and `A{}Aa` lower case (a piece ends after it) from those that are neither; the
last tries what counts as a letter of a contraction."""

RANGES = (
    range(0x80, 0xD800),
    range(0xE000, 0x40000),
    range(0xE0000, 0xE1000),
    range(0xF0000, 0xF0001),
)
"""All code points but ASCII, the planes that hold nothing, and of private use all but one."""

AT_ONCE = 128
"""Code points tried in one text; those of a text that differs are tried one by one."""

KINDS = (
    "a", "Z", "'", "s", "1", "\u00bd", " ", "\t", "\n", "\r", "\u00a0", ".", "/", "\u02b0",
    "\u0301", "\u4e2d",
)  # fmt: skip
"""A character of each kind that a pattern tells from others: all texts of one to three of them are
tried, too, and four alike."""


def differing_points(tokenizer: Tokenizer, ranges: Iterable[Iterable[int]] = RANGES) -> list[int]:
    """Return the code points beside which gigatoken splits text in other places, ascending.

    All of them take about 5 s. `tokenizer` must be one that splits by a pattern.

    Raises: ValueError where texts differ though none of their characters does alone, or texts of
    the most common characters; whatever gigatoken raises.
    """
    points = list(chain.from_iterable(ranges))
    batches = [points[start : start + AT_ONCE] for start in range(0, len(points), AT_ONCE)]
    with tempfile.TemporaryDirectory() as folder:
        crossing = write_crossing_tokenizer(tokenizer, Path(folder))
        fast = open_gigatoken(crossing, in_text="ordinary", is_parallel=False)
        reference = open_reference(crossing)
        found: set[int] = set()
        suspects: dict[str, list[Sequence[int]]] = {}
        for context in CONTEXTS:
            texts = [_text(batch, context) for batch in batches]
            suspects[context] = [batches[index] for index in unequal(texts, fast, reference)]
            alone = [point for batch in suspects[context] for point in batch]
            texts = [context.format(chr(point)) for point in alone]
            found |= {alone[index] for index in unequal(texts, fast, reference)}
        texts = ["".join(kinds) for num in (1, 2, 3) for kinds in product(KINDS, repeat=num)]
        texts += [kind * 4 for kind in KINDS]
        for context, unlike in suspects.items():
            texts += [_text(set(batch) - found, context) for batch in unlike]
        if wrong := unequal(texts, fast, reference):
            raise ValueError(f"it splits {texts[wrong[0]][:40]!r} otherwise")
    return sorted(found)


def write_crossing_tokenizer(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """Write into the empty `folder` a tokenizer that splits as `tokenizer` does and whose merges
    cross from the characters of the contexts to any other and back."""
    ends, starts = _bytes_of_contexts()
    lead, last = range(0xC2, 0xF5), range(0x80, 0xC0)
    pairs = [
        *((end, start) for end in ends for start in lead),
        *((end, start) for end in last for start in starts),
        *((left.encode()[-1], right.encode()[0]) for left, right in product(KINDS, repeat=2)),
    ]
    merges = [(bytes([left]), bytes([right])) for left, right in dict.fromkeys(pairs)]
    if tokenizer.kind == "tiktoken":
        ranks = {bytes([byte]): byte for byte in range(256)}
        ranks |= {left + right: 256 + rank for rank, (left, right) in enumerate(merges)}
        write_ranks(ranks, folder / "ranks.tiktoken")
        encoding = (tokenizer.folder / "encoding.json").read_bytes()
        (folder / "encoding.json").write_bytes(encoding)
    else:
        fields = read_tokenizer_json(tokenizer.folder)
        fields |= {"added_tokens": [], "model": {"type": "BPE", **byte_level_model(merges)}}
        (folder / "tokenizer.json").write_bytes(msgspec.json.encode(fields))
    return replace(tokenizer, folder=folder)


def unequal(texts: Sequence[str], fast: Engine, reference: Engine) -> list[int]:
    """Return the indices of the texts that do not get the same tokens."""
    array = to_texts(texts)
    pairs = zip(fast.encode(array).documents(), reference.encode(array).documents(), strict=True)
    return [index for index, pair in enumerate(pairs) if not np.array_equal(*pair)]


def _text(points: Iterable[int], context: str) -> str:
    return "\n\n".join(context.format(chr(point)) for point in sorted(points))


def _bytes_of_contexts() -> tuple[list[int], list[int]]:
    """Return which bytes stand before and after the code point that is tried."""
    halves = [context.encode().partition(b"{}") for context in CONTEXTS]
    before = {left[-1] for left, _, _ in halves} | {ord("\n")}
    after = {right[0] for _, _, right in halves} | {ord("\n")}
    return sorted(before), sorted(after)

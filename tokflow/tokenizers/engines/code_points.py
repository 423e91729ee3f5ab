"""The characters that gigatoken and the references take for different kinds of character.

gigatoken 0.10 knows the letters, marks, numbers and symbols of Unicode 17, which added some and
changed the kind of one; tiktoken 0.14 and tokenizers 0.23 know those of Unicode 16, and the NFC of
tokenizers is that of Unicode 9. Beside such a character text is split in other places, or comes
out in another order, so that its tokens differ where a merge crosses the place.

Of other versions all code points there are get compared. The tokens of a vocabulary tell nothing
of a split where no merge crosses it. So another vocabulary takes its place, with the same pattern:
its only merges are of the last byte of one character with the first byte of the next, whatever
they are. A place that is split then shows in the tokens.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.store.tables import offsets_of, text_buffers, to_arrow, to_texts
from tokflow.tokenizers import byte_level_model
from tokflow.tokenizers.engines import Encoded, Engine
from tokflow.tokenizers.engines.chunks import CutRule
from tokflow.tokenizers.engines.fast import GigatokenEngine, open_gigatoken
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer, scan_tokenizer_json, write_ranks

COMPARED = {"gigatoken": "0.10.0", "tiktoken": "0.14.0", "tokenizers": "0.23.3"}
"""The versions of which the tables below tell all that differs. Any other version is compared with
its counterpart when it is met, which takes some seconds."""

UNICODE_17 = (
    "295 88F C5C CDC 1ACF-1ADD 1AE0-1AEB 20C1 2B96 A7CE-A7CF A7D2 A7D4 A7F1 FBC3-FBD2 FD90-FD91 "
    "FDC8-FDCE 10940-10959 10EC5-10EC7 10ED0-10ED8 10EFA-10EFB 11B60-11B67 11DB0-11DDB 11DE0-11DE9 "
    "16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2 1CCFA-1CCFC "
    "1CEBA-1CED0 1CEE0-1CEF0 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 1F6D8 1F777-1F77A 1F8D0-1F8D8 "
    "1FA54-1FA57 1FA8A 1FA8E 1FAC8 1FACD 1FAEA 1FAEF 1FBFA 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
)
"""Additions of Unicode 17, 4,803 code points, and U+0295, a letter that lost its lower case.
The patterns of GPT-2, cl100k, Llama 3, OLMo and Qwen 2 split 4,657 of them otherwise,
Qwen 3.5 with its marks 4,699, o200k with its case 4,700, DeepSeek with its symbols and punctuation
all but U+0295; the rest costs nothing."""

NFC_SINCE_UNICODE_9 = (
    "7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 105C9 105D2 105DA 105E4 "
    "10D24-10D27 10D69-10D6D 10EAB-10EAC 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B "
    "11382-11385 1138B 1138E 11390-11391 113B8 113BB 113C2 113C5 113C7-113C9 113CE-113D0 1145E "
    "11839-1183A 11930 11935 11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 "
    "11D97 11F41-11F42 1611E-16129 1612F 16D63 16D67-16D6A 16FF0-16FF1 1E08F 1E130-1E136 1E2AE "
    "1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF"
)
"""Marks with a combining class and parts of composed characters, up to Unicode 16, that tokenizers
leaves where they stand: its crate unicode-normalization-alignments has the tables of Unicode 9."""


class CodePoints:
    """A set of code points that are not ASCII, found in UTF-8 without decoding it."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Take ranges of (first, last), ascending and apart."""
        self._edges = np.array([edge for a, b in ranges for edge in (a, b + 1)], dtype=np.int32)
        self._second_bytes: dict[int, npt.NDArray[np.bool_]] = {}
        for point in self:
            lead, second = chr(point).encode()[:2]
            table = self._second_bytes.setdefault(lead, np.zeros(256, dtype=np.bool_))
            table[second] = True

    def __iter__(self) -> Iterator[int]:
        for first, stop in self._edges.reshape(-1, 2).tolist():
            yield from range(first, stop)

    def positions_in(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Return the positions at which the characters begin in UTF-8, ascending.

        1 MB of ASCII takes 0.05 ms, of English with curly quotes 0.1 ms, of Chinese 0.4 ms, of
        Hindi 1.3 ms; a run takes 10 to 25 ms for it.
        """
        found = [np.zeros(0, dtype=np.int64)]
        is_high = data >= min(self._second_bytes, default=0xFF)
        num_high = np.count_nonzero(is_high)
        # Few are gathered and looked at again; of many, each lead byte is looked for everywhere.
        high = np.flatnonzero(is_high) if num_high < len(data) // 16 else None
        for lead, second_bytes in self._second_bytes.items() if num_high else ():
            at = np.flatnonzero(data == lead) if high is None else high[data[high] == lead]
            at = at[second_bytes[data[at + 1]]]
            num_following = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
            points = np.full(len(at), lead & (0x3F >> num_following), dtype=np.int32)
            for place in range(1, num_following + 1) if len(at) else ():
                points = (points << 6) | (data[at + place] & 0x3F)
            edges = np.searchsorted(self._edges, points, side="right")
            found.append(at[edges % 2 == 1])
        return np.sort(np.concatenate(found))


NOWHERE = re.compile(rb"(?!)")

WHOLE_BYTES = 250_000
"""Texts that are left to the reference whole before a rule is asked for, which takes 0.3 s."""


@dataclass
class RoutedEngine:
    """A fast engine that leaves the text around some code points to the reference: as far as the
    nearest places where it may be cut, or all of it where there is none."""

    fast: Engine
    reference: Engine
    code_points: CodePoints
    find_rule: Callable[[], CutRule | None]
    """Called when texts of more than `WHOLE_BYTES` had such a code point."""
    name: str = GigatokenEngine.name
    """The library that makes the tokens of nearly all text."""
    _num_bytes: int = 0
    """Size of the texts so far that had one."""

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, in order.

        The fast engine is given all parts of the texts, without a copy; its tokens of those of the
        reference are dropped.
        """
        offsets, data = text_buffers(texts)
        positions = self.code_points.positions_in(data[offsets[0] : offsets[-1]]) + offsets[0]
        if not len(positions):
            return self.fast.encode(texts)
        starts, stops = self._parts(offsets, data.data, positions)
        within = np.setdiff1d([*starts, *stops], offsets)
        edges = np.sort(np.concatenate([offsets, within]))
        bytes_ = texts.buffers()[2]
        parts = pa.LargeStringArray.from_buffers(len(edges) - 1, pa.py_buffer(edges), bytes_)
        routed = np.searchsorted(edges, starts, side="right") - 1  # behind texts that are empty
        replaced = self.reference.encode(parts.take(to_arrow(routed)))
        encoded = self.fast.encode(parts)
        counts = np.diff(encoded.offsets)
        counts[routed] = np.diff(replaced.offsets)
        tokens = np.split(encoded.token_ids, encoded.offsets[[routed, routed + 1]].T.ravel())
        tokens[1::2] = replaced.documents()
        first_parts = np.arange(len(offsets)) + np.searchsorted(within, offsets)
        return Encoded(token_ids=np.concatenate(tokens), offsets=offsets_of(counts)[first_parts])

    def _parts(
        self, offsets: npt.NDArray[np.int64], data: memoryview, positions: npt.NDArray[np.int64]
    ) -> tuple[list[int], list[int]]:
        """Return the bytes at which the parts of the reference begin and end, in order."""
        texts = np.searchsorted(offsets, positions, side="right")
        self._num_bytes += int(np.diff(offsets)[np.unique(texts) - 1].sum())
        rule = self.find_rule() if self._num_bytes > WHOLE_BYTES else None
        place = rule.place if rule and not rule.num_dropped else NOWHERE
        last_place = re.compile(b"(?s:.*)(?:%b)" % place.pattern)  # looked for from behind
        starts, stops = [], [0]
        ends = offsets[[texts - 1, texts]].T.tolist()
        for position, (first, last) in zip(positions.tolist(), ends, strict=True):
            if position >= stops[-1]:
                start = max(first, stops[-1])
                before = last_place.match(data, start, position)
                behind = place.search(data, position, last)
                starts.append(before.end() if before else start)
                stops.append(behind.end() if behind else last)
        return starts, stops[1:]


@cache
def code_points_for_reference(tokenizer: Tokenizer) -> CodePoints:
    """Return the code points that gigatoken must not tokenize, nor what stands around them.

    Raises: ValueError where gigatoken splits otherwise in a way that no set of them explains.
    """
    fields = scan_tokenizer_json(tokenizer.folder)
    if tokenizer.kind == "sentencepiece" or fields.get("model", {}).get("byte_fallback"):
        return CodePoints([])  # whose models know characters one by one, and no classes of them
    has_normalizer = fields.get("normalizer") is not None
    reference = "tiktoken" if tokenizer.kind == "tiktoken" else "tokenizers"
    if all(version(library) == COMPARED[library] for library in ("gigatoken", reference)):
        tables = (UNICODE_17, NFC_SINCE_UNICODE_9) if has_normalizer else (UNICODE_17,)
        edges = [entry.partition("-") for table in tables for entry in table.split()]
        return CodePoints(sorted((int(a, 16), int(b or a, 16)) for a, _, b in edges))
    if has_normalizer:
        raise ValueError(
            f"its NFC was compared with that of tokenizers {COMPARED['tokenizers']}, not of "
            f"{version('tokenizers')}"
        )
    return CodePoints(ranges_of(differing_points(tokenizer)))


def ranges_of(points: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending code points as ranges of (first, last)."""
    ordered = np.array(sorted(points), dtype=np.int64)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs if len(run)]


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
"""Code points to try: not ASCII, not the empty planes, and of private use only one."""

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
        fast = open_gigatoken(crossing, in_text="ordinary")
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
    halves = [context.encode().partition(b"{}") for context in CONTEXTS]
    ends = sorted({left[-1] for left, _, _ in halves} | {ord("\n")})
    starts = sorted({right[0] for _, _, right in halves} | {ord("\n")})
    lead, last = range(0xC2, 0xF5), range(0x80, 0xC0)
    pairs = [
        *product(ends, lead),
        *product(last, starts),
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
        fields = scan_tokenizer_json(tokenizer.folder)
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

"""Long texts in chunks, cut where the tokens of the chunks are the tokens of the whole.

A cut is proven from what the tokenizer is made of, never tried: between a letter and the white
space after it, if every step of the tokenizer (added tokens, normalizer, split pattern, model)
treats the two sides alike whether or not the other is there. A step that is not known here means
that there is no such place and that a document is encoded whole, however long it is. Patterns cut
in more places (`NEAR`), of which a character that needs the reference has more around it.

Two ways lead to a cut. Either a step cuts there by itself: a pattern in which some alternative
takes runs of letters and none goes on from a letter to white space or looks back. Or the whole
text is one piece for a BPE model, and no token of its vocabulary holds a letter with a space
behind it, so that no merge ever crosses the place. Unigram without such a step has no place: its
scores are added up from the start of the text, in floating point.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.store.tables import offsets_of, text_buffers, texts_of
from tokflow.tokenizers import flat_steps
from tokflow.tokenizers.engines import Encoded, Engine, InText
from tokflow.tokenizers.engines.reference import MODEL_NAME
from tokflow.tokenizers.tokenizer import Tokenizer, read_encoding, scan_tokenizer_json


@dataclass(frozen=True, slots=True)
class CutRule:
    """Places at which a chunk may end."""

    place: re.Pattern[bytes]
    """Matches the UTF-8 bytes before a cut; the cut is at the end of the match."""
    num_dropped: int = 0
    """Bytes left out at the start of each chunk but the first: a space that the tokenizer puts
    in front of every text by itself."""


WIDE = CutRule(re.compile(rb"(?:[A-Za-z]|[\xe5-\xe8][\x80-\xbf]{2})(?=[ \n])"))
"""A Latin letter or an ideograph (U+5000 to U+8FFF) before a space or a line end."""
NEAR = CutRule(
    re.compile(rb"(?:[A-Za-z0-9]|[\xe5-\xe8][\x80-\xbf]{2})(?=[ \n])|[!-/:-@\[-`{-~](?= )")
)
"""A place of `WIDE`, a digit before a space or a line end, or ASCII punctuation before a space: not
before a line end, which some alternatives take with it. An added token is likelier to span one."""
NARROW = CutRule(re.compile(rb"[A-Za-z](?= [A-Za-z])"))
"""One space between two Latin letters."""
DROPPING = CutRule(NARROW.place, num_dropped=1)
ANY_CHARACTER = CutRule(re.compile(rb"[\x00-\xff](?=[^\x80-\xbf])", re.DOTALL))

LETTER_ALTERNATIVES = frozenset(
    (
        r" ?\p{L}+",
        r"[\p{L}]+",
        r"\p{L}+",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    )
)
"""Take runs of letters, and nothing after them but marks and a contraction."""

OTHER_ALTERNATIVES = frozenset(
    (
        r"'(?:[sdmt]|ll|ve|re)",
        r"'(?i:[sdmt]|ll|ve|re)",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        *(r"'s", r"'t", r"'re", r"'ve", r"'m", r"'ll", r"'d"),
        *(r" ?\p{N}+", r"\p{N}{1,3}", r"\p{N}", r"[\p{N}]", r"\p{N}+"),
        *(r" ?[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        *(r"\s+$", r"\s*[\r\n]", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+", r"\s"),
    )
)
"""Take no white space after a letter or a digit and no space after punctuation, and look at nothing
before them. Source: the patterns of
GPT-2, cl100k, o200k (tiktoken_ext/openai_public.py of tiktoken 0.14), Llama 3 and Qwen 2
(convert_slow_tokenizer.py of transformers 5.23), taken apart at their bars."""


def find_cut_rule(
    tokenizer: Tokenizer, *, in_text: InText, widest: CutRule = WIDE
) -> CutRule | None:
    """Return the rule for ends of chunks of a text, `widest` or a narrower one; None if no place is
    known.

    Lets nothing through unproven: an unknown step, an added token that spans a place of `widest`,
    one that takes the white space behind it.
    """
    if tokenizer.kind == "bytes":
        return ANY_CHARACTER
    if tokenizer.kind == "tiktoken":
        encoding = read_encoding(tokenizer.folder)
        names = encoding["special_tokens"] if in_text == "control" else ()
        is_proven = _splits_words(encoding["pattern"])
        return widest if is_proven and not _spans_a_place(names, widest) else None
    if tokenizer.kind == "sentencepiece":
        names = tokenizer.special_tokens if in_text == "control" else ()
        return _rule_of_model((tokenizer.folder / MODEL_NAME).read_bytes(), names)
    fields = scan_tokenizer_json(tokenizer.folder)
    return _rule_of_json(fields, in_text, widest) if fields else None


BPE = 2
"""TrainerSpec.ModelType; unigram is 1."""

_LOCAL_RULES = frozenset(("identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"))
"""SentencePiece's own normalization rules: Unicode's compatibility forms, none of a letter and a
space together."""


def _rule_of_model(model: bytes, control_symbols: Iterable[str]) -> CutRule | None:
    """Return the rule of a .model: only of BPE, whose merges stay on one side.

    The library puts neighbouring unknown pieces together, so the space must be a piece.

    Source: sentencepiece 0.2.3, sentencepiece_model.proto, whose fields have these numbers. The
    package's own Python classes need a protobuf as new as the one that made them; gigatoken reads
    it without.
    """
    from gigatoken._load.sentencepiece import _fields as fields_of  # yields (number, value)

    message = list(fields_of(model))
    pieces = [dict(fields_of(value)) for number, value in message if number == 1]
    names = [piece.get(1, b"").decode() for piece in pieces]
    trainer = dict(fields_of(dict(message).get(2, b"")))
    normalizer = dict(fields_of(dict(message).get(3, b"")))
    is_bpe, has_suffixes = trainer.get(3) == BPE, trainer.get(24, 0)
    rules, own_rules = normalizer.get(1, b"").decode(), normalizer.get(6)
    adds_prefix, removes_spaces, escapes_spaces = (normalizer.get(field, 1) for field in (3, 4, 5))
    if not is_bpe or has_suffixes or not escapes_spaces:
        return None
    if rules not in _LOCAL_RULES or own_rules or "▁" not in names:
        return None
    if any(map(re.compile("[A-Za-z][ ▁]").search, names)):
        return None
    if _spans_a_place(control_symbols, WIDE) or any(name[:1].isalpha() for name in control_symbols):
        return None
    if adds_prefix:
        return DROPPING
    return None if removes_spaces else NARROW


def _splits_words(pattern: str) -> bool:
    """Return whether a pattern cuts at each place of `NEAR`, whatever stands around.

    White space must be taken by an alternative of its own: what no alternative takes stands
    together, letters and all. No known alternative has an open bracket, so that a pattern which
    is nothing but those with bars between them has its alternatives at these bars.
    """
    plain = f"|{_without_possessives(pattern)}|"
    known = "|".join(map(re.escape, LETTER_ALTERNATIVES | OTHER_ALTERNATIVES))
    is_known = re.fullmatch(rf"\|((?:{known})\|)+", plain) is not None
    has_letters = any(f"|{letters}|" in plain for letters in LETTER_ALTERNATIVES)
    has_spaces = any(f"|{spaces}|" in plain for spaces in (r"\s+", r"\s"))
    return is_known and has_letters and has_spaces


def _without_possessives(pattern: str) -> str:
    """Return the pattern with `++` as `+` and so on: here both match the same."""
    return re.sub(r"([+*?]|\{\d+,\d+\})\+", r"\1", pattern)


def _spans_a_place(names: Iterable[str], rule: CutRule) -> bool:
    return any(rule.place.search(name.encode()) for name in names)


_UNICODE_FORMS = frozenset(("NFC", "NFD", "NFKC", "NFKD"))
_LOCAL_NORMALIZERS = frozenset(
    ("Lowercase", "StripAccents", "Nmt", "Precompiled", "BertNormalizer", *_UNICODE_FORMS)
)
"""Normalizers that treat a Latin letter and the space after it independently; Unicode's forms treat
any character and a space so."""

_AT_WHITE_SPACE = frozenset(("Whitespace", "WhitespaceSplit", "BertPreTokenizer"))
_AT_OTHER_CHARACTERS = frozenset(("Digits", "Punctuation"))
_SPACES = {"Metaspace": "▁", "ByteLevel": "Ġ"}
"""Characters that a model sees for a space after the last pre-tokenizer."""


def _rule_of_json(fields: Mapping[str, Any], in_text: InText, widest: CutRule) -> CutRule | None:
    normalized = _after_normalizer(fields.get("normalizer"), widest)
    if normalized is None:
        return None
    rule, space = normalized
    steps = flat_steps(fields.get("pre_tokenizer"), "pretokenizers")
    if any(step["type"] in ("ByteLevel", "Metaspace") for step in steps[:-1]):
        return None  # what comes after them sees other characters
    if space != " " and any(map(_adds_space, steps)):
        return None  # it looks for a space at the start of each chunk
    seen = _SPACES.get(steps[-1]["type"], space) if steps else space
    verdicts = [_cuts(step, space) for step in steps]
    if None in verdicts or not (any(verdicts) or _merges_stay_apart(fields["model"], seen)):
        return None
    is_of_patterns = all(
        step["type"] == "ByteLevel" or "Regex" in step.get("pattern", ()) for step in steps
    )
    if not any(verdicts) or not is_of_patterns or any(map(_adds_space, steps)):
        rule = NARROW if rule is widest else rule
    added = fields.get("added_tokens") or []
    found = [token for token in added if in_text == "control" or not token["special"]]
    return rule if all(_is_found_alike(token, rule, widest) for token in found) else None


def _adds_space(step: Mapping[str, Any]) -> bool:
    return bool(step.get("add_prefix_space"))


def _after_normalizer(
    normalizer: Mapping[str, Any] | None, widest: CutRule
) -> tuple[CutRule, str] | None:
    """Return the widest rule under which the normalizer treats chunks as it does the whole, and
    what it makes of a space."""
    rule, space = widest, " "
    steps = flat_steps(normalizer, "normalizers")
    for step in steps:
        if step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if (pattern, step["content"], space) == (" ", "▁", " "):
                space = "▁"
            elif not pattern or re.search("[A-Za-z \n▁]", pattern + step["content"]):
                return None
        elif step["type"] != "Prepend" and step["type"] not in _LOCAL_NORMALIZERS:
            return None
        if step["type"] not in _UNICODE_FORMS:
            rule = NARROW
    prepended = [step["prepend"] for step in steps if step["type"] == "Prepend"]
    if prepended:
        return (DROPPING, space) if prepended == ["▁"] == [space] else None
    return rule, space


def _cuts(step: Mapping[str, Any], space: str) -> bool | None:
    """Return whether a pre-tokenizer cuts between a letter and `space`; None where it is not known
    to leave the other cuts as they are."""
    kind = step["type"]
    if kind == "ByteLevel":
        return bool(step.get("use_regex", True))  # GPT-2's pattern, in the library's own code
    if kind in _AT_WHITE_SPACE:
        return space == " "
    if kind in _AT_OTHER_CHARACTERS:
        return False
    if kind == "Metaspace":
        return bool(step.get("split", True)) if step["replacement"] == "▁" else None
    return _split_cuts(step, space) if kind == "Split" else None


def _split_cuts(step: Mapping[str, Any], space: str) -> bool | None:
    regex, string = step["pattern"].get("Regex"), step["pattern"].get("String")
    how = step["behavior"], bool(step.get("invert"))
    if string is not None:
        is_before = how in (("Isolated", False), ("Removed", False), ("MergedWithNext", False))
        return True if string == space and is_before else None
    if _without_possessives(regex) in (r"\p{N}{1,3}", r"\p{N}", r"\d"):
        return False if how == ("Isolated", False) else None
    is_plain = how in (("Isolated", False), ("Isolated", True), ("Removed", True))
    return True if is_plain and _splits_words(regex) else None


def _merges_stay_apart(model: Mapping[str, Any], space: str) -> bool:
    """Return whether no token of a BPE model holds a letter with a space behind it."""
    if model.get("type") != "BPE" or model.get("ignore_merges"):
        return False
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    vocab = msgspec.json.decode(model.get("vocab", b"{}"))
    if not vocab or (model.get("fuse_unk") and space not in vocab):
        return False  # unknown letters and spaces would become one unknown token
    crossing = re.compile("[A-Za-z][ ▁Ġ]")
    return not any(map(crossing.search, vocab))


def _is_found_alike(token: Mapping[str, Any], rule: CutRule, widest: CutRule) -> bool:
    """Return whether an added token is found in chunks where it is found in the whole."""
    # One that is looked for in normalized text is itself normalized.
    content = unicodedata.normalize("NFKC", token["content"])
    if _spans_a_place([content + " " if token.get("rstrip") else content], widest):
        return False
    is_behind_cut = content[:1].isspace()
    if is_behind_cut and token.get("single_word"):  # a word before it is in another chunk
        return False
    if rule.num_dropped and (content[:1].isalpha() or is_behind_cut):
        return False
    # In normalized text other characters may have become letters.
    is_normalized = token.get("normalized") and rule is not widest
    return not (is_normalized and re.search(r"[^\W\d_][\s▁]", content))


CHUNK_BYTES = 1_000_000
"""Text of one chunk: long enough that an engine notices no difference."""

CHUNKED_BYTES = 4 * CHUNK_BYTES
"""Texts longer than this are cut."""

BATCH_BYTES = 4 * CHUNK_BYTES
"""Chunks encoded at once hold about so much text."""


@dataclass(frozen=True)
class ChunkedEngine:
    """An engine that is never given a text longer than a few chunks, where its rule allows.

    `tokenizers` takes some 150 bytes of memory for each byte it encodes at once, and gigatoken
    encodes a text on one core however long it is; both are spared by chunks.
    """

    engine: Engine
    find_rule: Callable[[], CutRule | None]
    """Called when a text is long."""
    dtype: np.dtype[np.unsignedinteger]
    """Type of the tokens of chunks, unless one does not fit."""
    chunk_bytes: int = CHUNK_BYTES
    chunked_bytes: int = CHUNKED_BYTES
    batch_bytes: int = BATCH_BYTES

    @property
    def name(self) -> str:
        """The library that makes the tokens."""
        return self.engine.name

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, equal to those of the text encoded as a whole."""
        offsets, data = text_buffers(texts)
        is_long = np.diff(offsets) > self.chunked_bytes
        if not is_long.any() or (rule := self.find_rule()) is None:
            return self.engine.encode(texts)
        spans = zip(pairwise(offsets.tolist()), is_long.tolist(), strict=True)
        bounds = [self._cut(rule, data.data, *of) if is_cut else [of] for of, is_cut in spans]
        chunks = [chunk for of_text in bounds for chunk in of_text]
        ends = np.cumsum([stop - start for start, stop in chunks])
        is_last = np.append(np.diff(ends // self.batch_bytes) > 0, True)
        dtype, token_ids = self.dtype, bytearray()  # grows without a second copy of large texts
        counts: list[npt.NDArray[np.int64]] = []
        for first, last in pairwise([0, *(np.flatnonzero(is_last) + 1).tolist()]):
            encoded = self.engine.encode(texts_of([data.data[a:b] for a, b in chunks[first:last]]))
            if encoded.token_ids.max(initial=0) > np.iinfo(dtype).max:
                token_ids = bytearray(np.frombuffer(token_ids, dtype).astype("<u4"))
                dtype = np.dtype("<u4")
            token_ids += encoded.token_ids.astype(dtype, copy=False).data
            counts.append(np.diff(encoded.offsets))
        of_chunks = offsets_of(np.concatenate(counts))
        of_texts = of_chunks[offsets_of([len(of_text) for of_text in bounds])]
        return Encoded(token_ids=np.frombuffer(token_ids, dtype), offsets=of_texts)

    def _cut(self, rule: CutRule, data: memoryview, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the bounds of the chunks of one text; a chunk ends at the first place after
        `chunk_bytes`, so that every byte is looked at once."""
        bounds = []
        while match := rule.place.search(data, start + self.chunk_bytes, stop):
            bounds.append((start, match.end()))
            start = match.end() + rule.num_dropped
        return [*bounds, (start, stop)]

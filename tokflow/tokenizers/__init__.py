"""Split patterns: how byte-level BPE cuts text into words before it merges pairs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokflow.errors import ConfigError

GPT2 = "gpt2"
"""Not a pattern here: `ByteLevel` has it built in, and gigatoken's trainer as well."""

GPT2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's pattern as a regular expression, for tiktoken, which has no built-in one."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

PATTERNS: Mapping[str, str] = {
    "cl100k": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "o200k": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+"
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_ENDING}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""Names to regular expressions of Oniguruma. cl100k and llama3 are one pattern with two names,
as in the published tokenizer.json of both; tiktoken's own of cl100k has `\\s++$`, too, and does not
cut white space that ends a text behind its last line end.

Source: tiktoken 0.14 openai_public.py; tokenizer.json of Meta-Llama-3-8B and Qwen2-7B."""


def check_pattern(pattern: str) -> None:
    """Check that `pattern` is a known name or a regular expression that Oniguruma can read.

    A single word is taken for a misspelt name. Raises: ConfigError.
    """
    if pattern == GPT2 or pattern in PATTERNS:
        return
    found = repr(pattern)
    if not re.fullmatch(r"\w*", pattern):
        import tokenizers

        try:
            tokenizers.Regex(pattern)
            return
        except AttributeError:  # with 1.0, which finds out when it splits
            return
        except Exception as error:  # `tokenizers` has no class of its own for it
            found += f": {str(error).removeprefix('Oniguruma error: ')}"
    expected = f"one of {', '.join((GPT2, *PATTERNS))}, or a regular expression"
    remedy = "correct it; Oniguruma reads regular expressions"
    raise ConfigError(where="pattern", expected=expected, found=found, remedy=remedy)


def pre_tokenizer_fields(pattern: str) -> dict[str, Any]:
    """Return the `pre_tokenizer` of a tokenizer.json that splits by a pattern, named or not."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    byte_level["use_regex"] = pattern == GPT2
    if pattern == GPT2:
        return byte_level
    regex = {"Regex": PATTERNS.get(pattern, pattern)}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level]}


def flat_steps(step: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """Return a step of a tokenizer.json, or those of a sequence, in order."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [flat for one in step[inner] for flat in flat_steps(one, inner)]


def describe_splitting(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """Describe how the `pre_tokenizer` of a tokenizer.json splits: by a pattern's name or itself.

    Several steps stand one after another: `Digits, gpt2`.
    """
    found = []
    for step in flat_steps(pre_tokenizer, "pretokenizers"):
        if step["type"] == "Split":
            pattern = next(iter(step["pattern"].values()))
            names = [name for name, known in PATTERNS.items() if known == pattern]
            found.append("/".join(names) or str(pattern))
        elif step["type"] != "ByteLevel":
            found.append(str(step["type"]))
        elif step.get("use_regex", True):  # else it only maps bytes to letters
            found.append(GPT2)
    return ", ".join(found) or "none"


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_SHIFTED = [byte for byte in range(256) if byte not in _PRINTABLE]

BYTE_LETTERS = [chr(0x100 + _SHIFTED.index(of) if of in _SHIFTED else of) for of in range(256)]
"""The printable character that stands for each byte in a byte-level vocabulary.

Bytes that print in Latin-1 stand for themselves, the other 68 are shifted past U+0100 in order:
byte 0 is U+0100, the space is U+0120. Source: openai/gpt-2, src/encoder.py, bytes_to_unicode."""


def byte_level_model(merges: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return `vocab` and `merges` of a tokenizer.json whose ids are the bytes, then the merges."""

    def spell(token: bytes) -> str:
        return "".join(BYTE_LETTERS[byte] for byte in token)

    vocab = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}
    for left, right in merges:
        vocab.setdefault(spell(left + right), len(vocab))
    return {"vocab": vocab, "merges": [[spell(left), spell(right)] for left, right in merges]}


def special_token_fields(name: str, token_id: int) -> dict[str, Any]:
    """Return an entry of `added_tokens` of a tokenizer.json: a special token found anywhere."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": name, **flags, "special": True}

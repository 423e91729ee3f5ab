"""The tokenizers of the cases, each through its own library and with no code of tokflow."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import tiktoken
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, trainers

from tokflow_tests.fuzz.texts import random_text
from tokflow_tests.texts import find_shared
from tokflow_tests.vocabularies import (
    LLAMA3_PATTERN,
    QWEN_PATTERN,
    byte_letters,
    openai_pattern,
    read_ranks,
    write_tiktoken_file,
)

EOS, BOS = "<|endoftext|>", "<|bos|>"
PATTERNS = {
    "gpt2": None,  # built into ByteLevel
    "cl100k": LLAMA3_PATTERN,
    "qwen2": QWEN_PATTERN,
    "o200k": openai_pattern("o200k_base"),
}
"""As tiktoken and the tokenizer.json of Llama 3 and Qwen 2 have them."""

NAMES = (
    *("bytes",) * 6,
    *(f"trained-{name}" for name in PATTERNS for _ in range(2)),
    *("tiktoken-gpt2", "tiktoken-cl100k_base", "tiktoken-o200k_base"),
)
"""What a case may draw."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A tokenizer as its own library has it."""

    fields: Mapping[str, Any]
    """What the YAML says to get it."""
    vocab_size: int
    special_tokens: Mapping[str, int]
    """Names that a text may spell, and their ids."""
    eos_id: int
    bos_id: int | None
    encode_ordinary: Callable[[str], list[int]]
    """Special tokens in the text are plain text."""
    encode_control: Callable[[str], list[int]]
    """They become the control tokens."""
    bytes_of: Callable[[int], bytes]
    """What a token stands for; not of `eos_id` and `bos_id` of kind bytes."""
    _cache: dict[tuple[str, bool], list[int]] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """The dtype of token ids, by the largest."""
        return "<u2" if self.vocab_size <= 65_536 else "<u4"

    def encode(self, text: str, *, is_control: bool) -> list[int]:
        """Return the tokens of a text, without BOS and EOS; kept, for a case asks often."""
        if len(self._cache) > 2_000:
            self._cache.clear()
        key = (text, is_control)
        if key not in self._cache:
            self._cache[key] = (self.encode_control if is_control else self.encode_ordinary)(text)
        return self._cache[key]


def is_available(name: str) -> bool:
    """Say whether the vocabulary is on this machine; nothing is ever downloaded."""
    return name != "tiktoken-gpt2" or len(_gpt2_files()) == 2


@cache
def open_reference(name: str, folder: Path) -> Reference:
    """Return the reference called `name`; what it is made of is kept in `folder`."""
    kind, _, which = name.partition("-")
    if kind == "bytes":
        return _bytes()
    if kind == "trained":
        return _trained(which, folder / "tokenizers" / f"{which}.json")
    return _tiktoken(which, folder / "tiktoken")


def _bytes() -> Reference:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    return Reference(
        fields={"kind": "bytes"},
        vocab_size=258,
        special_tokens={},
        eos_id=256,
        bos_id=257,
        encode_ordinary=encode,
        encode_control=encode,
        bytes_of=lambda token: bytes([token]),
    )


def _trained(pattern: str, path: Path) -> Reference:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_train(pattern).to_str(), encoding="utf-8")
    ordinary, control = (tokenizers.Tokenizer.from_file(str(path)) for _ in range(2))
    ordinary.encode_special_tokens = True
    added = {token.content: id_ for id_, token in ordinary.get_added_tokens_decoder().items()}
    letters = {letter: byte for byte, letter in enumerate(byte_letters())}
    names = {id_: name for name, id_ in ordinary.get_vocab(with_added_tokens=True).items()}

    def bytes_of(token: int) -> bytes:
        name = names[token]
        return name.encode() if name in added else bytes(letters[letter] for letter in name)

    return Reference(
        fields={"kind": "file", "name": str(path), "eos_token": EOS, "bos_token": BOS},
        vocab_size=max(names) + 1,
        special_tokens={name: id_ for name, id_ in added.items() if name != "<tool>"},
        eos_id=added[EOS],
        bos_id=added[BOS],
        encode_ordinary=lambda text: ordinary.encode(text, add_special_tokens=False).ids,
        encode_control=lambda text: control.encode(text, add_special_tokens=False).ids,
        bytes_of=bytes_of,
    )


def _train(pattern: str) -> tokenizers.Tokenizer:
    """Return a tokenizer that has learnt the random texts themselves, rare letters among them."""
    random = Random(pattern)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    regex = PATTERNS[pattern]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    if regex is None:
        tokenizer.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2_000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator((random_text(random) for _ in range(6_000)), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in (EOS, BOS, "<|im_end|>")]
    )
    if pattern == "qwen2":  # it is found in a text, whatever is said of special ones
        tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer


def _tiktoken(name: str, cache_folder: Path) -> Reference:
    """Return an encoding; tiktoken, and tokflow with it, find its files in `cache_folder`."""
    cache_folder.mkdir(parents=True, exist_ok=True)
    if name == "gpt2":
        for path in _gpt2_files():
            shutil.copyfile(path, cache_folder / path.name)
    else:
        write_tiktoken_file(name, read_ranks(name.removesuffix("_base")), cache_folder)
    os.environ["TIKTOKEN_CACHE_DIR"] = str(cache_folder)
    encoding = tiktoken.get_encoding(name)
    special_tokens = dict(encoding._special_tokens)
    return Reference(
        fields={"kind": "tiktoken", "name": name},
        vocab_size=encoding.max_token_value + 1,
        special_tokens=special_tokens,
        eos_id=special_tokens[EOS],
        bos_id=None,
        encode_ordinary=encoding.encode_ordinary,
        encode_control=lambda text: encoding.encode(text, allowed_special="all"),
        bytes_of=encoding.decode_single_token_bytes,
    )


GPT2_FILES = (
    "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
    "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
)
"""What tiktoken's cache calls GPT-2's vocab.bpe and encoder.json: the sha1 of their URLs."""


@cache
def _gpt2_files() -> tuple[Path, ...]:
    given = os.environ.get("TIKTOKEN_CACHE_DIR")
    folders = [Path(given)] if given else []
    for folder in (*folders, find_shared() / "tiktoken-cache"):
        paths = tuple(folder / name for name in GPT2_FILES)
        if all(path.is_file() for path in paths):
            return paths
    return ()

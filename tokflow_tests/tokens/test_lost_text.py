import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tokflow_tests.special import (
    of_bytes,
    of_sentencepiece,
    of_tiktoken,
    of_tokenizers,
    of_transformers,
    train_model,
)
from tokflow_tests.tiny import declare, tokenize

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
A_TILDE = "Ã"
"""The letter of 0xC3, with which `é` and `ö` begin."""

NAMES = ("num_unknown_tokens", "num_lost_bytes")


def counts(folder: Path, tokenizer: dict[str, Any], *texts: str) -> list[int | None]:
    shard = tokenize(declare(folder, {"a.jsonl": texts}, tokenizer=tokenizer))
    return [shard.manifest.counts.get(name) for name in NAMES]


def saved(folder: Path, made: Tokenizer, **model: Any) -> dict[str, Any]:
    made.add_special_tokens(["</s>"])
    fields = json.loads(made.to_str())
    fields["model"].update(model)
    (folder / "t.json").write_text(json.dumps(fields))
    return {"kind": "file", "name": "t.json", "eos_token": "</s>"}


def byte_level(
    *merges: tuple[str, str], without: str = "", unknown: str | None = None
) -> Tokenizer:
    names = [*(of for of in LETTERS if of not in without), *map("".join, merges)]
    names += [unknown] if unknown else []
    vocab = {name: index for index, name in enumerate(names)}
    kept = [merge for merge in merges if {*merge} <= {*vocab}]
    made = Tokenizer(models.BPE(vocab, kept, unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def characters(**model: Any) -> Tokenizer:
    names = ["a", "b", "<0xC3>", "<0xA9>"]
    made = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, [], **model))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def words(model: Any, **fields: Any) -> Tokenizer:
    made = Tokenizer(model({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]", **fields))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def pieces(*, byte_fallback: bool) -> Tokenizer:
    of_bytes = [(f"<0x{byte:02X}>", -9.0) for byte in range(256)] if byte_fallback else []
    scored = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0), *of_bytes]
    return Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=byte_fallback))


@pytest.mark.parametrize("kind", [of_bytes, of_tiktoken, of_sentencepiece, of_tokenizers])
def test_a_vocabulary_of_all_bytes_loses_nothing_and_is_not_counted(
    kind: Callable[[Path], dict[str, Any]], tmp_path: Path
):
    assert counts(tmp_path, {"eos": "none", **kind(tmp_path)}, "a é") == [None, None]


@pytest.mark.parametrize(
    ("made", "unknown"),
    [
        (words(models.WordLevel), 2),
        (words(models.WordPiece), 2),
        (byte_level(without=A_TILDE, unknown="<unk>"), 2),
        (pieces(byte_fallback=False), 2),  # one for the space and what follows it
        (pieces(byte_fallback=True), None),
    ],
)
def test_text_without_a_token_that_becomes_unknown_is_counted(
    made: Tokenizer, unknown: int | None, tmp_path: Path
):
    assert counts(tmp_path, saved(tmp_path, made), "a é", "ö") == [unknown, None]


def test_the_unknown_token_of_a_model_without_bytes_or_in_python_is_counted(tmp_path: Path):
    (tmp_path / "own.model").write_bytes(train_model(byte_fallback=False, vocab_size=40))
    of_model = {"kind": "sentencepiece", "name": "own.model"}

    for tokenizer in (of_model, of_transformers(tmp_path)):
        assert counts(tmp_path, tokenizer, "a é", "ö") == [2, None]


@pytest.mark.parametrize(
    ("made", "model", "num_bytes"),
    [
        (byte_level(), {}, None),
        (byte_level(without="ÿÀ"), {}, None),  # of bytes that are in no text
        (byte_level(without=A_TILDE), {}, 2),
        (byte_level(without=A_TILDE + "Ġ"), {}, 3),
        (characters(), {}, 4),
        (characters(byte_fallback=True), {}, 2),
        (characters(), {"end_of_word_suffix": "x"}, 5),
    ],
)
def test_bytes_that_become_no_token_are_counted(
    made: Tokenizer, model: dict[str, Any], num_bytes: int | None, tmp_path: Path
):
    assert counts(tmp_path, saved(tmp_path, made, **model), "a é", "ö") == [None, num_bytes]


@pytest.mark.parametrize("normalizer", [normalizers.NFC(), normalizers.ByteLevel()])
def test_they_are_counted_in_the_text_as_the_tokenizer_normalises_it(
    normalizer: Any, tmp_path: Path
):
    made = byte_level(without=A_TILDE)
    made.normalizer = normalizer
    if isinstance(normalizer, normalizers.ByteLevel):
        made.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    lost = 2 if isinstance(normalizer, normalizers.NFC) else 1  # e and U+0301 has no 0xC3

    found = counts(tmp_path, saved(tmp_path, made), "é", "e\N{COMBINING ACUTE ACCENT}")
    assert found == [None, lost]


def test_a_word_that_is_a_token_is_not_lost_though_its_bytes_would_be(tmp_path: Path):
    made = byte_level((A_TILDE, "©"), without=A_TILDE)
    tokenizer = saved(tmp_path, made, ignore_merges=True)

    assert counts(tmp_path, tokenizer, "é", "aé") == [None, 1]


def test_an_added_token_is_not_lost_though_its_bytes_would_be(tmp_path: Path):
    made = byte_level(without=A_TILDE)
    made.add_tokens(["é"])

    assert counts(tmp_path, saved(tmp_path, made), "é", "ö") == [None, 1]

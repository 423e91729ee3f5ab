import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tiktoken
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from tokflow.errors import TokenizerError
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines import InText, fast, reference
from tokflow.tokenizers.engines.gate import EngineDiffersError, open_engine
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens import shard as tokens
from tokflow_tests.outputs import token_lists
from tokflow_tests.texts import awkward_strings
from tokflow_tests.tiny import FEW_TEXTS, declare_texts, save_tokenizer, tokenize
from tokflow_tests.wrong_engine import gate_wrong_engine

TRAINING_TEXT = ["It's 12 o'clock, the naïve café opens its doors.\n", "def f(x):\n    return x\n"]
BYTE_LEVEL = pre_tokenizers.ByteLevel


def train(model: Any, trainer: Any, pre_tokenizer: Any, normalizer: Any = None):
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return tokenizer


def byte_level_bpe(normalizer: Any = None, *, prefix: bool = False) -> tokenizers.Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["</s>"],
        initial_alphabet=BYTE_LEVEL.alphabet(),
        show_progress=False,
    )
    tokenizer = train(models.BPE(), trainer, BYTE_LEVEL(add_prefix_space=prefix), normalizer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def word_level() -> tokenizers.Tokenizer:
    trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]", "</s>"], show_progress=False)
    model = models.WordLevel(unk_token="[UNK]")
    return train(model, trainer, pre_tokenizers.Whitespace())


UNSUPPORTED: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "WordLevel": word_level,
    "NFKC": lambda: byte_level_bpe(normalizers.NFKC()),
    "lowercase": lambda: byte_level_bpe(normalizers.Lowercase()),
    "strip": lambda: byte_level_bpe(normalizers.Strip()),
}


@cache
def some_strings() -> tuple[str, ...]:
    return (*TRAINING_TEXT, *FEW_TEXTS, *awkward_strings()[::40])


def save(tokenizer: tokenizers.Tokenizer, folder: Path, **fields: object) -> dict[str, str]:
    """Return the config of the tokenizer, saved with some fields of its JSON changed."""
    path = folder / "own.json"
    path.write_text(json.dumps({**json.loads(tokenizer.to_str()), **fields}), encoding="utf-8")
    return {"kind": "file", "name": str(path), "eos_token": "</s>"}


def reference_tokens(
    tokenizer: tokenizers.Tokenizer,
    texts: Sequence[str],
    *,
    control: bool = False,
    ends: bool = True,
) -> list[list[int]]:
    tokenizer.encode_special_tokens = not control
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    end = [tokenizer.token_to_id("</s>")] if ends else []
    return [[*encoding.ids, *end] for encoding in encodings]


def saved(folder: Path, tokenizer: tokenizers.Tokenizer | None = None) -> Tokenizer:
    """Return a tokenizer, by default a byte-level BPE, as it is in a store."""
    return save_tokenizer(declare_texts(folder, **save(tokenizer or byte_level_bpe(), folder)))


def run_of(shard: tokens.TokenShard) -> dict[str, Any]:
    return json.loads((shard.folder / "_tokflow/run.json").read_text())


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_gigatoken_does_not_support_goes_to_the_reference_and_says_why(
    name: str, tmp_path: Path
):
    tokenizer = UNSUPPORTED[name]()
    dataset = declare_texts(tmp_path, some_strings(), **save(tokenizer, tmp_path))

    shard = tokenize(dataset)

    assert token_lists(shard) == reference_tokens(tokenizer, some_strings())
    assert run_of(shard)["engine"] == "tokenizers"
    assert run_of(shard)["engine_reason"].startswith("gigatoken does not take this tokenizer: ")
    assert "\n" not in run_of(shard)["engine_reason"]


def test_asking_for_gigatoken_where_it_differs_is_an_error_that_shows_a_text(tmp_path: Path):
    tokenizer = byte_level_bpe()
    tokenizer.add_tokens([AddedToken("<|x|>", single_word=True)])
    config = {**save(tokenizer, tmp_path), "engine": "gigatoken"}

    with pytest.raises(TokenizerError, match=r"found 'a<\|x\|>b' became \[") as caught:
        tokenize(declare_texts(tmp_path, **config))

    assert caught.value.where == "tokenizer.engine: gigatoken"


AROUND = ("a{}b", " {} ", "{0}{0}", "\n {}\n", "_{}_", "é{}é", "{}", "it's {}.", "a\t{}\r\n")
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


@pytest.mark.parametrize("is_special", [True, False], ids=["special", "not special"])
@pytest.mark.parametrize("flag", ["none", *FLAGS])
def test_added_tokens_are_found_as_the_reference_finds_them(
    flag: str, is_special: bool, tmp_path: Path
):
    tokenizer = byte_level_bpe()
    flags = {flag: True} if flag != "none" else {}
    token = AddedToken("<|x|>", special=is_special, **flags)
    (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)([token])
    texts = [around.format("<|x|>") for around in AROUND]
    own = saved(tmp_path, tokenizer)
    for in_text in ("ordinary", "control"):
        made = open_engine(own, in_text=in_text).encode(to_texts(texts))

        expected = reference_tokens(tokenizer, texts, control=in_text == "control", ends=False)
        assert [ids.tolist() for ids in made.documents()] == expected
        is_found = tokenizer.token_to_id("<|x|>") in expected[6]
        assert is_found == (in_text == "control" or not is_special)


@pytest.mark.parametrize("in_text", ["ordinary", "control"])
def test_of_two_added_tokens_that_overlap_the_reference_decides(in_text: InText, tmp_path: Path):
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens([AddedToken("<|x|>")])
    tokenizer.add_tokens([AddedToken("<|x|>y")])
    texts = ["<|x|>y", "<|x|><|x|>y z"]
    own = saved(tmp_path, tokenizer)
    for choice in ("auto", "reference"):
        made = open_engine(own, choice=choice, in_text=in_text).encode(to_texts(texts))

        expected = reference_tokens(tokenizer, texts, control=in_text == "control", ends=False)
        assert [ids.tolist() for ids in made.documents()] == expected


@pytest.mark.parametrize("text", ["a strange document", "a strange document " * 3_000])
def test_an_engine_that_differs_on_a_document_of_the_shard_is_caught(text: str, tmp_path: Path):
    gated = gate_wrong_engine(save_tokenizer(declare_texts(tmp_path)))

    with pytest.raises(EngineDiffersError) as caught:
        gated.encode(pa.array(["", "ab", text, "c"], pa.large_string()))

    assert "'a strange document" in str(caught.value)
    assert "gigatoken: " in str(caught.value)


@pytest.mark.parametrize("engine", ["gigatoken", "reference"])
@pytest.mark.parametrize("is_parallel", [True, False])
def test_a_slice_of_an_array_has_the_tokens_of_its_own_texts(
    engine: str, is_parallel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fast, "num_cores", lambda: 4 if is_parallel else 1)
    tokenizer = saved(tmp_path)
    opened, reference = open_engine(tokenizer, choice=engine), open_reference(tokenizer)
    texts = pa.array(["Hello", "", "x", "größe", "tail"], pa.large_string())

    encoded = opened.encode(texts.slice(1, 3))

    assert encoded.offsets[0] == 0
    assert [reference.decode(ids) for ids in encoded.documents()] == ["", "x", "größe"]


@pytest.mark.parametrize("in_text", ["ordinary", "control"])
@pytest.mark.parametrize("num_cores", [1, 3])
@pytest.mark.parametrize("times", [1, 2_000], ids=["short", "long"])
def test_threads_or_none_the_tokens_are_those_of_tiktoken(
    in_text: str, num_cores: int, times: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reference, "num_cores", lambda: num_cores)
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    encoding = tiktoken.Encoding(
        "test", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<e>": 300}
    )
    texts = ["ab <e> é " * times, "b" * times, "", "<e>ab" * times]

    encoded = reference.TiktokenEngine(encoding, in_text=in_text).encode(to_texts(texts))

    special = "all" if in_text == "control" else set[str]()
    how = {"allowed_special": special, "disallowed_special": ()}
    expected = [encoding.encode(text, **how) for text in texts]
    assert [ids.tolist() for ids in encoded.documents()] == expected
    assert (300 in encoded.token_ids) == (in_text == "control")


def test_bytes_show_special_ids_by_name_and_broken_text_as_a_mark(tmp_path: Path):
    tokenizer = save_tokenizer(declare_texts(tmp_path))

    assert open_reference(tokenizer).decode([257, 97, 0xC3, 256]) == "<bos>a\ufffd<eos>"
    assert open_engine(tokenizer).reason == "the bytes need no other engine"

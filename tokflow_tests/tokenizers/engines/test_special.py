"""What each engine makes of special tokens that a text spells: one contract for all."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tokflow.errors import BadDocumentError, TokenizerError
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard
from tokflow_tests import special
from tokflow_tests.outputs import token_lists
from tokflow_tests.special import letter_ids, write_letters
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize

TEXTS = ["before</s>after", "</s>", "</s></s> text", "plain"]
NUM_SPELT = 4


@dataclass(frozen=True)
class Case:
    """An engine, and how to come by a tokenizer that it runs."""

    make: special.Make
    choice: str
    engine: str
    has_special: bool = True
    has_words: bool = True


CASES = {
    "bytes": Case(special.of_bytes, "auto", "bytes", has_special=False, has_words=False),
    "tiktoken": Case(special.of_tiktoken, "reference", "tiktoken", has_words=False),
    "tokenizers": Case(special.of_tokenizers, "reference", "tokenizers"),
    "gigatoken": Case(special.of_tokenizers, "gigatoken", "gigatoken"),
    "sentencepiece": Case(special.of_sentencepiece, "auto", "sentencepiece"),
    "gigatoken, .model": Case(
        special.of_sentencepiece_without_words, "gigatoken", "gigatoken", has_words=False
    ),
    "transformers": Case(special.of_transformers, "auto", "transformers"),
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
KINDS = {name: case for name, case in CASES.items() if case.choice != "gigatoken"}
each_kind = pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
WITH_WORDS = {name: case for name, case in CASES.items() if case.has_words}
each_case_with_words = pytest.mark.parametrize("case", WITH_WORDS.values(), ids=WITH_WORDS)


def shard_of(case: Case, folder: Path, texts: list[str], policy: str) -> TokenShard:
    config = {**case.make(folder), "engine": case.choice, "special_tokens_in_text": policy}
    shard = tokenize(declare_texts(folder, texts, **config))
    assert json.loads((shard.folder / "_tokflow/run.json").read_text())["engine"] == case.engine
    return shard


def tokenizer_of(case: Case, folder: Path) -> Tokenizer:
    return save_tokenizer(declare_texts(folder, ["a"], **case.make(folder)))


@each_case
def test_ordinary_keeps_what_is_spelt_as_text_and_counts_it(case: Case, tmp_path: Path):
    shard = shard_of(case, tmp_path, TEXTS, "ordinary")
    engine = open_reference(tokenizer_of(case, tmp_path))

    eos = shard.manifest.details["eos_id"]
    assert [ids.count(eos) for ids in token_lists(shard)] == [1, 1, 1, 1]
    assert [engine.decode(ids[:-1]) for ids in token_lists(shard)] == TEXTS
    assert shard.manifest.counts["num_special_tokens_in_text"] == NUM_SPELT * case.has_special


@each_case
def test_control_makes_the_control_token_and_counts_it(case: Case, tmp_path: Path):
    shard = shard_of(case, tmp_path, TEXTS, "control")

    eos = shard.manifest.details["eos_id"]
    times = [2, 1, 3, 1] if case.has_special else [1, 1, 1, 1]  # the second ends with EOS already
    assert [ids.count(eos) for ids in token_lists(shard)] == times
    assert shard.manifest.counts["num_special_tokens_in_text"] == NUM_SPELT * case.has_special


@each_case
def test_error_stops_at_the_first_text_that_spells_one(case: Case, tmp_path: Path):
    texts = ["plain", *TEXTS]
    if not case.has_special:
        assert len(token_lists(shard_of(case, tmp_path, texts, "error"))) == len(texts)
        return

    with pytest.raises(BadDocumentError) as caught:
        shard_of(case, tmp_path, texts, "error")

    assert caught.value.row == 1
    assert "expected no special token in the text, found '</s>'" in str(caught.value)


@each_case_with_words
def test_added_tokens_that_are_not_special_keep_working(case: Case, tmp_path: Path):
    for policy, both in (("ordinary", ["a<word></s>b<word>"]), ("control", []), ("error", [])):
        shard = shard_of(case, tmp_path, ["a<word>b", "<word><word>", *both], policy)

        eos = shard.manifest.details["eos_id"]
        [word] = set.intersection(*map(set, token_lists(shard))) - {eos}
        assert [ids.count(word) for ids in token_lists(shard)] == [1, 2, *[2] * len(both)]
        assert [ids.count(eos) for ids in token_lists(shard)[2:]] == [1] * len(both)
        assert shard.manifest.counts["num_special_tokens_in_text"] == len(both)


@each_kind
def test_eos_may_be_any_token_of_the_vocabulary(case: Case, tmp_path: Path):
    config = {**case.make(tmp_path), "eos_token": "b", "engine": case.choice}

    shard = tokenize(declare_texts(tmp_path, ["a", ""], **config))

    [_, empty] = token_lists(shard)
    engine = open_reference(save_tokenizer(declare_texts(tmp_path, **config)))
    assert shard.manifest.details["eos_token"] == "b"
    assert engine.decode(empty) == "b"


@each_kind
def test_eos_that_is_in_no_vocabulary_is_an_error(case: Case, tmp_path: Path):
    config = {**case.make(tmp_path), "eos_token": "<nowhere>"}

    with pytest.raises(TokenizerError) as caught:
        save_tokenizer(declare_texts(tmp_path, **config))

    assert caught.value.where == "tokenizer.eos_token"
    assert caught.value.found == "'<nowhere>'"


def test_an_added_token_past_65_535_makes_ids_of_four_bytes(tmp_path: Path):
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word", "special"), False)
    added = {"65536": {"content": "<word>", **flags}}
    write_letters(tmp_path / "letters", added_tokens_decoder=added)
    dataset = declare_texts(
        tmp_path, ["<word>a"], kind="huggingface", name="letters", trust_remote_code=True
    )

    shard = tokenize(dataset)

    assert shard.tokens().dtype == "<u4"
    assert token_lists(shard) == [[65_536, *letter_ids("a"), 2]]


def test_code_that_makes_control_tokens_of_text_cannot_be_ordinary(tmp_path: Path):
    write_letters(tmp_path / "letters", tokenize="text.split()")
    config = {"kind": "huggingface", "name": "letters", "trust_remote_code": True}
    assert token_lists(tokenize(declare_texts(tmp_path, ["a"], **config))) == [
        [*letter_ids("a"), 2]
    ]

    with pytest.raises(TokenizerError) as caught:
        tokenize(declare_texts(tmp_path, ["a </s>"], **config))

    assert caught.value.where == "tokenizer.special_tokens_in_text: ordinary"

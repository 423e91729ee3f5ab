"""The library of a tokenizer.json, in whichever version is installed: `make test` has 0.23,
`make test-next` 1.0. What 1.0 lacks is tried there alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import TokenizerError
from tokflow.pipeline.run import build_dataset
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines.hugging_face import JsonTokenizer, is_version_1, load_tokenizer_json
from tokflow.tokenizers.training import _tokenizer_json
from tokflow_tests.outputs import token_lists
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize

with_1 = pytest.mark.skipif(not is_version_1(), reason="tokenizers 1.0: `make test-next`")

CUT = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
PAD = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
PAD |= {"pad_type_id": 0, "pad_token": "!"}


def fields(**model: Any) -> dict[str, Any]:
    """A tokenizer of bytes, 256 `ab`, 257 `abab` and 258 `<end>`."""
    made = _tokenizer_json([(b"a", b"b"), (b"ab", b"ab")], ["<end>"], "gpt2")
    return {**made, "model": {**made["model"], **model}}


def load(tokenizer: dict[str, Any], in_text: Any = "ordinary") -> JsonTokenizer:
    return load_tokenizer_json(json.dumps(tokenizer).encode(), in_text)


def ids(loaded: JsonTokenizer, *texts: str) -> list[list[int]]:
    return [of.tolist() for of in loaded.encode(to_texts(texts)).documents()]


def test_a_special_token_in_a_text_is_plain_text_or_the_control_token_as_asked():
    assert ids(load(fields()), "ab<end>") == [[256, *b"<end>"]]
    assert ids(load(fields(), "control"), "ab<end>") == [[256, 258]]


def test_what_a_file_says_of_truncation_padding_and_dropout_changes_no_token():
    loaded = load({**fields(dropout=0.9), "truncation": CUT, "padding": PAD})

    assert ids(loaded, "abab abab", "c") == [[257, 32, 257], [99]]


def test_added_tokens_have_the_ids_that_the_library_gives_them():
    tokenizer = fields()
    [end] = tokenizer["added_tokens"]
    tokenizer["added_tokens"] += [{**end, "id": 900, "content": "<pad>", "lstrip": True}]
    loaded = load(tokenizer, "control")

    added = loaded.added_tokens()

    found = [(id_, of.content, of.lstrip) for id_, of in added.items()]
    assert found == [(258, "<end>", False), (259, "<pad>", True)]
    assert ids(loaded, "a <pad><end>") == [[97, 259, 258]]
    assert loaded.decode([256, 259]) == "ab<pad>"


def test_the_vocabulary_is_that_of_the_model():
    loaded = load(fields())

    assert len(loaded.vocabulary()) == 258
    assert (loaded.id_in_model("abab"), loaded.id_in_model("<end>")) == (257, None)


def test_a_unigram_vocabulary_is_numbered_in_its_order():
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["a", -1.0]]}
    loaded = load({**fields(), "pre_tokenizer": None, "decoder": None, "model": model})

    assert loaded.vocabulary() == {"?": 0, "a": 1}
    assert ids(loaded, "aab") == [[1, 1, 0]]


def declare_file(folder: Path, tokenizer: dict[str, Any], *texts: str, **config: Any) -> Any:
    (folder / "t.json").write_text(json.dumps(tokenizer))
    named = {"kind": "file", "name": "t.json", "eos_token": "<end>"}
    return declare_texts(folder, texts, **named, **config)


BEFORE = {
    "type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "single": [
        {"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "special_tokens": {"<end>": {"id": "<end>", "ids": [258], "tokens": ["<end>"]}},
}  # fmt: skip


@pytest.mark.parametrize("engine", ["gigatoken", "reference"])
def test_a_dataset_has_the_ids_of_the_library_and_no_file_has_it_cut_pad_add_or_draw(
    engine: str, tmp_path: Path
):
    cuts = {"truncation": CUT, "padding": PAD, "post_processor": BEFORE}
    tokenizer = {**fields(dropout=0.9), **cuts}
    dataset = declare_file(tmp_path, tokenizer, "abab ab<end>", "é", engine=engine)

    shard = tokenize(dataset)

    assert token_lists(shard) == [[257, 32, 256, *b"<end>", 258], [*"é".encode(), 258]]
    assert not build_dataset(dataset).failed


@with_1
def test_what_1_lacks_is_an_error_that_names_the_version_that_has_it(tmp_path: Path):
    """Text that a vocabulary loses is counted by the words of 0.23."""
    small = {"vocab": {"a": 0, "b": 1, "ab": 2, "<end>": 3}, "merges": [["a", "b"]]}
    lossy = declare_file(tmp_path, fields(**small), "ab")

    with pytest.raises(TokenizerError, match=r"install tokenizers 0\.23, or ") as caught:
        tokenize(lossy)

    assert caught.value.where == "tokenizers 1.0"


@with_1
def test_1_trains_by_gigatoken_alone(tmp_path: Path):
    trained = save_tokenizer(declare_texts(tmp_path / "a", kind="trained", vocab_size=270))
    assert trained.vocab_size == 270

    other = declare_texts(tmp_path / "b", kind="trained", vocab_size=270, pattern="qwen2")
    with pytest.raises(TokenizerError, match="tokenizers 1"):
        save_tokenizer(other)


@with_1
def test_a_split_pattern_that_1_does_not_know_is_an_error(tmp_path: Path):
    tokenizer = fields()
    tokenizer["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": r"\d\d|."}}
    tokenizer["pre_tokenizer"] |= {"behavior": "Isolated", "invert": False}

    with pytest.raises(TokenizerError, match="reads this tokenizer"):
        save_tokenizer(declare_file(tmp_path, tokenizer, "a"))


@with_1
def test_what_only_transformers_loads_is_an_error_where_that_cannot_be_installed(tmp_path: Path):
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "vocab.txt").write_text("[UNK]\na\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')

    with pytest.raises(TokenizerError, match="transformers"):
        save_tokenizer(declare_texts(tmp_path, kind="huggingface", name=str(folder)))

"""Folders with a model file and no tokenizer.json: the tokens are those of the model's library."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken

from tokflow.errors import TokenizerError
from tokflow.tokenizers import hub
from tokflow.tokenizers.engines.gate import AWKWARD_STRINGS
from tokflow.tokenizers.engines.hugging_face import load_pretrained
from tokflow.tokenizers.patterns import PATTERNS
from tokflow_tests.outputs import token_lists
from tokflow_tests.special import train_model
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize

LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
TEXTS = ["a  word", "  and in\n", " x é😀", "<s> text"]
RANKS = {bytes([byte]): byte for byte in range(256)} | {b"'s": 256, b"12": 257, b"123": 258}


def save(
    folder: Path, content: bytes, config: dict[str, Any] | None, name: str = "tokenizer.model"
):
    (folder / "t").mkdir(exist_ok=True)
    (folder / "t" / name).write_bytes(content)
    if config is not None:
        (folder / "t/tokenizer_config.json").write_text(json.dumps(config))


def ranks(tokens: dict[bytes, int]) -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(token), id_) for token, id_ in tokens.items())


@pytest.mark.parametrize(
    ("options", "config"),
    [({}, LLAMA), ({"remove_extra_whitespaces": True}, LLAMA | {"legacy": False}), ({}, None)],
    ids=["Llama", "legacy: false", "no class"],
)
def test_a_sentencepiece_model_in_a_folder_gives_its_own_ids(
    options: dict[str, Any], config: dict[str, Any] | None, tmp_path: Path
):
    model = train_model(**options)
    save(tmp_path, model, config)

    shard = tokenize(
        declare_texts(tmp_path, [*TEXTS, *AWKWARD_STRINGS], kind="huggingface", name="t")
    )

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    expected = [[*processor.encode(text), 2] for text in (*TEXTS, *AWKWARD_STRINGS)]
    assert token_lists(shard) == expected


def test_legacy_false_puts_no_space_behind_a_control_token(tmp_path: Path):
    model = train_model(control_symbols=["<c>"])
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = []
    for legacy in (True, False):
        save(tmp_path, model, LLAMA | {"legacy": legacy})
        dataset = declare_texts(
            tmp_path, ["a<c>a"], kind="huggingface", name="t", special_tokens_in_text="control"
        )
        found.append([processor.id_to_piece(id_) for id_ in token_lists(tokenize(dataset))[0]])

    assert found == [["▁a", "<c>", "▁a", "</s>"], ["▁a", "<c>", "a", "</s>"]]


def test_added_tokens_that_are_no_pieces_of_the_model_are_refused(tmp_path: Path):
    more = {"32000": {"content": "<|im_end|>", "special": True}}
    save(tmp_path, train_model(), LLAMA | {"added_tokens_decoder": more})

    with pytest.raises(TokenizerError, match=r"pieces of the SentencePiece.*found '<\|im_end\|>'"):
        save_tokenizer(declare_texts(tmp_path, kind="huggingface", name="t"))


def test_a_class_that_cuts_text_otherwise_than_its_model_is_refused(tmp_path: Path):
    save(
        tmp_path,
        train_model(model_type="unigram"),
        {"tokenizer_class": "T5Tokenizer"},
        "spiece.model",
    )

    with pytest.raises(TokenizerError, match=r"the pieces of spiece\.model"):
        save_tokenizer(declare_texts(tmp_path, kind="huggingface", name="t"))


def test_ranks_of_tiktoken_need_a_split_pattern(tmp_path: Path):
    save(tmp_path, ranks(RANKS), None)

    with pytest.raises(TokenizerError, match="do not say how text is split") as error:
        save_tokenizer(declare_texts(tmp_path, kind="huggingface", name="t"))

    assert "set tokenizer.pattern to gpt2, cl100k, llama3, qwen2, o200k" in str(error.value)


@pytest.mark.parametrize("pattern", ["qwen2", "llama3", r"\d|\D+"])
def test_ranks_are_split_by_the_pattern_that_is_named(pattern: str, tmp_path: Path):
    config = {"added_tokens_decoder": {"300": {"content": "<end>"}}, "eos_token": "<end>"}
    save(tmp_path, ranks(RANKS), config)

    shard = tokenize(
        declare_texts(tmp_path, ["123's"], kind="huggingface", name="t", pattern=pattern)
    )

    library = tiktoken.Encoding(
        "t", pat_str=PATTERNS.get(pattern, pattern), mergeable_ranks=RANKS, special_tokens={}
    )
    assert token_lists(shard) == [[*library.encode_ordinary("123's"), 300]]


def test_ranks_that_are_known_have_their_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    content = ranks(RANKS)
    monkeypatch.setattr(hub, "RANKS", {hashlib.sha256(content).hexdigest(): "qwen2"})
    save(tmp_path, content, None)
    dataset = declare_texts(tmp_path, ["123"], kind="huggingface", name="t", eos="none")

    assert token_lists(tokenize(dataset)) == [[49, 50, 51]]


def test_transformers_reads_sentencepiece_models_beside_the_protobuf_that_is_installed(
    tmp_path: Path,
):
    save(tmp_path, train_model(), LLAMA)

    loaded = load_pretrained(tmp_path / "t", trust_remote_code=False)

    assert loaded.convert_tokens_to_ids("▁word") == sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "t/tokenizer.model")
    ).piece_to_id("▁word")

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from tokflow.errors import ConfigError, TokenizerError
from tokflow.tokenizers.tokenizer import (
    Tokenizer,
    TokenizerConfig,
    fields_of_name,
    read_ranks,
    resolve_encoding,
    scan_tokenizer_json,
    tokenizer_of,
    write_ranks,
)
from tokflow.tokenizers.vocabulary import Facts
from tokflow_tests.outputs import stored
from tokflow_tests.special import made_tokenizer
from tokflow_tests.tiny import declare_texts, many_ids, save_tokenizer


def make_bytes_tokenizer(**changes: object) -> Tokenizer:
    both = {"eos_id": 256, "eos_token": "<eos>", "bos_id": 257, "bos_token": "<bos>"}
    own = {"vocab_size": 258, "special_tokens": {"<eos>": 256, "<bos>": 257}, **both}
    return made_tokenizer(Path("somewhere"), "bytes", **{**own, **changes})


def test_a_saved_tokenizer_is_opened_as_it_was(tmp_path: Path):
    saved = save_tokenizer(declare_texts(tmp_path))

    opened = tokenizer_of(stored(saved.folder))

    assert (opened, opened.manifest) == (saved, saved.manifest)


def test_the_same_files_with_another_eos_are_another_tokenizer(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(many_ids(10))
    how = {"kind": "file", "name": "tokenizer.json"}

    first, second = (
        save_tokenizer(declare_texts(tmp_path, eos_token=name, **how)) for name in ("<eos>", "w1")
    )

    assert (first.eos_id, second.eos_id) == (10, 1)
    assert first.manifest.files == second.manifest.files
    assert first.fingerprint != second.fingerprint


def test_fields_that_do_not_go_with_the_kind_or_with_each_other_are_refused():
    trained, tiktoken = {"kind": "trained"}, {"kind": "tiktoken", "name": "gpt2"}
    refused = [
        ({"kind": "bytes", "name": "gpt2"}, "name", "'gpt2' with kind bytes"),
        ({"kind": "bytes", "vocab_size": 9}, "vocab_size", "9 with kind bytes"),
        ({"kind": "bytes", "trust_remote_code": True}, "trust_remote_code", "True with kind bytes"),
        ({**tiktoken, "revision": "x"}, "revision", "'x' with kind tiktoken"),
        ({**trained, "name": "gpt2"}, "name", "'gpt2' with kind trained"),
        ({**trained, "vocab_size": 257, "special_tokens": ("<a>", "<b>")}, "vocab_size", "257"),
        ({**trained, "special_tokens": ("<a>", "<a>")}, "special_tokens", "['<a>', '<a>']"),
        ({**trained, "special_tokens": ("<a>", "")}, "special_tokens", "['<a>', '']"),
        *(({"kind": kind}, "name", "nothing") for kind in ("tiktoken", "huggingface", "file")),
        ({"kind": "sentencepiece"}, "name", "nothing"),
    ]
    for fields, name, found in refused:
        with pytest.raises(ConfigError) as caught:
            TokenizerConfig(**fields)

        assert (caught.value.where, caught.value.found) == (f"tokenizer.{name}", found)


def facts(named: dict[str, int], others: Mapping[str, int] = MappingProxyType({})) -> Facts:
    return Facts(
        vocab_size=300, special_tokens=named, find=others.get, eos_token=None, bos_token=None
    )


def test_a_named_token_that_is_not_in_the_vocabulary_is_an_error_with_the_choices():
    with pytest.raises(TokenizerError) as caught:
        facts({"</s>": 2, "<s>": 1}).id_of("eos", "<eos>")

    assert (caught.value.where, caught.value.found) == ("tokenizer.eos_token", "'<eos>'")
    assert facts({"</s>": 2}, {"b": 7}).id_of("eos", "b") == 7
    assert facts({"</s>": 2}, {"</s>": 7}).id_of("eos", "</s>") == 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bytes", "bytes"),
        ("cl100k_base", "tiktoken"),
        ("missing/tokenizer.json", "file"),
        ("missing/tokenizer.model", "sentencepiece"),
        ("openai-community/gpt2", "huggingface"),
        ("folder", "huggingface"),
        ("trained", "trained"),
        ("./gpt2", "huggingface"),
    ],
)
def test_a_bare_name_stands_for_a_kind(name: str, kind: str):
    fields = fields_of_name(name)

    assert fields == {"kind": kind, **({} if name == kind else {"name": name})}


@pytest.mark.parametrize(
    ("role", "special", "names"),
    [("eos", {"<eos>": 256, "<bos>": 257}, "'<eos>', '<bos>'"), ("bos", {}, "(none)")],
)
def test_a_tokenizer_without_eos_or_bos_is_an_error_that_names_the_choices(
    role: str, special: dict[str, int], names: str
):
    nobody = {f"{role}_id": None, f"{role}_token": None}
    tokenizer = make_bytes_tokenizer(special_tokens=special, **nobody)

    with pytest.raises(TokenizerError) as caught:
        resolve_encoding(TokenizerConfig(kind="bytes", bos="first"), tokenizer)

    assert caught.value.where == f"tokenizer.{role}"
    assert caught.value.found == f"none; its special tokens are {names}"


def test_ranks_are_read_as_they_were_written(tmp_path: Path):
    ranks = {b"\x00": 0, b" a": 2, b"\xff\xfe": 1, b"\n": 7}

    write_ranks(ranks, tmp_path / "ranks")

    assert read_ranks(tmp_path / "ranks") == ranks
    assert (tmp_path / "ranks").read_bytes() == b"AA== 0\n//4= 1\nIGE= 2\nCg== 7\n"


def test_a_tokenizer_json_scanned_says_all_that_one_read_says(tmp_path: Path):
    fields = {"version": "1.0", "added_tokens": [{"id": 2, "content": "<e>"}], "normalizer": None}
    model = {"type": "BPE", "unk_token": None, "vocab": {"a": 0, "é": 1}, "merges": [["a", "é"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**fields, "model": model}))

    scanned = scan_tokenizer_json(tmp_path)

    assert msgspec.json.decode(msgspec.json.encode(scanned)) == {**fields, "model": model}
    raw = {name for name, value in scanned["model"].items() if isinstance(value, msgspec.Raw)}
    assert raw == {"vocab", "merges"}
    assert scan_tokenizer_json(tmp_path / "none") == {}


@pytest.mark.parametrize("kind", ["huggingface", "file", "sentencepiece", "tiktoken"])
def test_a_url_is_no_name_and_its_secret_is_not_shown(kind: str):
    with pytest.raises(ConfigError, match="found the URL hf://org/name; name the hub id") as caught:
        TokenizerConfig(kind=kind, name="hf://user:SECRET@org/name")

    assert "SECRET" not in str(caught.value)

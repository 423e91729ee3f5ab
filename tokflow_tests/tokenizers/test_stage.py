import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
import tokenizers

from tokflow.errors import TokenizerError
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.store.manifest import read_manifest
from tokflow.tokenizers import PATTERNS, hub
from tokflow.tokenizers.engines.gate import AWKWARD_STRINGS
from tokflow.tokenizers.engines.hugging_face import load_pretrained
from tokflow.tokenizers.engines.reference import open_tiktoken
from tokflow.tokenizers.hub import download_tokenizer
from tokflow.tokenizers.tokenizer import TokenizerConfig
from tokflow_tests.hub import Hub
from tokflow_tests.outputs import token_lists
from tokflow_tests.special import of_tiktoken, train_model
from tokflow_tests.tiny import FEW_TEXTS, declare_texts, save_tokenizer, tokenize
from tokflow_tests.tokenizers.engines.test_engines import byte_level_bpe


def save_json(tokenizer: tokenizers.Tokenizer, folder: Path, **beside: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if beside:
        (folder / "tokenizer_config.json").write_text(json.dumps(beside))
    return folder


def error_of(folder: Path, **tokenizer: Any) -> TokenizerError:
    with pytest.raises(TokenizerError) as caught:
        make_output(graph_of(declare_texts(folder, **tokenizer)), "tokenizer", "tokenizer")
    return caught.value


@pytest.mark.parametrize("as_object", [False, True])
def test_eos_and_bos_stand_beside_the_tokenizer_and_added_tokens_count_for_its_vocabulary(
    as_object: bool, tmp_path: Path
):
    tokenizer = byte_level_bpe()
    num_ids = tokenizer.get_vocab_size()
    tokenizer.add_tokens(["<more>"])
    tokenizer.add_special_tokens(["<s>"])
    names = {"eos_token": "</s>", "bos_token": "<s>"}
    if as_object:
        names = {role: {"content": name, "lstrip": False} for role, name in names.items()}
    save_json(tokenizer, tmp_path / "own", **names)

    saved = save_tokenizer(declare_texts(tmp_path, kind="huggingface", name="own"))

    assert (saved.eos_token, saved.eos_id) == ("</s>", 0)
    assert (saved.bos_token, saved.bos_id) == ("<s>", num_ids + 1)
    assert saved.vocab_size == num_ids + 2
    assert saved.special_tokens == {"</s>": 0, "<s>": num_ids + 1}


def test_an_encoding_that_tiktoken_does_not_know_is_an_error_with_those_it_knows(tmp_path: Path):
    error = error_of(tmp_path, kind="tiktoken", name="gpt-2")

    assert error.expected.startswith("one of gpt2, r50k_base, ")
    assert error.remedy == "did you mean 'gpt2'?"


@pytest.mark.parametrize(
    ("kind", "files", "state"),
    [
        ("file", None, "is missing"),
        ("huggingface", [], "is empty"),
        ("huggingface", ["a.bin"], "holds no file of a tokenizer"),
    ],
)
def test_what_holds_no_tokenizer_is_an_error_that_says_where_paths_start(
    kind: str, files: list[str] | None, state: str, tmp_path: Path
):
    if files is not None:
        (tmp_path / "own").mkdir()
        for name in files:
            (tmp_path / "own" / name).write_bytes(b"weights")

    error = error_of(tmp_path, kind=kind, name="./own")

    assert error.found == f"'{tmp_path / 'own'}', which {state}"
    assert "starts at the root of the project" in error.remedy


def test_a_path_may_start_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    save_json(byte_level_bpe(), tmp_path / "home", eos_token="</s>")

    saved = save_tokenizer(declare_texts(tmp_path, kind="file", name="~/tokenizer.json"))

    assert saved.eos_id == 0


def test_a_folder_without_tokenizer_json_is_no_file(tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "vocab.json").write_text("{}")

    error = error_of(tmp_path, kind="file", name="own")

    assert error.where == "tokenizer.name: own"
    assert "kind: huggingface" in error.remedy


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"model": {"vocab": 1}}', "panic"])
def test_a_broken_tokenizer_json_is_an_error(text: str, tmp_path: Path):
    if text == "panic":  # the library's, which is no Exception
        fields = json.loads(byte_level_bpe().to_str())
        own = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
        model = {**fields["model"], "continuing_subword_prefix": "##", **own}
        text = json.dumps({**fields, "added_tokens": [], "model": model})
    (tmp_path / "own.json").write_text(text)

    error = error_of(tmp_path, kind="file", name="own.json")

    assert error.where == "tokenizer.json"
    assert error.found.startswith("RuntimeError: it panicked: " if "##" in text else "ValueError: ")


@pytest.mark.parametrize(("text", "found"), [("{", "DecodeError: "), ("[]", "ValidationError: ")])
def test_a_broken_tokenizer_config_json_is_an_error(text: str, found: str, tmp_path: Path):
    folder = save_json(byte_level_bpe(), tmp_path / "own")
    (folder / "tokenizer_config.json").write_text(text)

    error = error_of(tmp_path, kind="huggingface", name="own")

    assert error.where == "tokenizer_config.json"
    assert error.found.startswith(found)


def test_the_same_files_elsewhere_are_the_same_tokenizer(tmp_path: Path):
    saved = []
    for name in "ab":
        save_json(byte_level_bpe(), tmp_path / name / "own", eos_token="</s>")
        dataset = declare_texts(tmp_path / name, kind="huggingface", name="own")
        saved.append(save_tokenizer(dataset))

    assert saved[0].fingerprint == saved[1].fingerprint
    assert saved[0].folder.name == saved[1].folder.name


def tokens_of(folder: Path, texts: Sequence[str], tokenizer: Mapping[str, Any]) -> list[list[int]]:
    return token_lists(tokenize(declare_texts(folder, texts, **tokenizer)))


def test_a_saved_encoding_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = of_tiktoken(tmp_path)
    first = tokens_of(tmp_path, FEW_TEXTS, config)
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, config["name"])
    open_tiktoken.cache_clear()

    assert tokens_of(tmp_path, FEW_TEXTS[::-1], config) == first[::-1]


def byte_level_files(folder: Path) -> Path:
    """Write a tokenizer as GPT-2's was published: vocab.json and merges.txt."""
    model = json.loads(byte_level_bpe().to_str())["model"]
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "bos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "unk_token": "</s>"}))
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    return folder


def few_of_byte_level() -> list[list[int]]:
    """Return the tokens of FEW_TEXTS by the tokenizer that `byte_level_files` writes."""
    tokenizer = byte_level_bpe()
    tokenizer.encode_special_tokens = True
    return [[*encoding.ids, 0] for encoding in tokenizer.encode_batch(list(FEW_TEXTS))]


def test_what_transformers_makes_nothing_of_is_an_error(tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "vocab.txt").write_text("no tokenizer")

    error = error_of(tmp_path, kind="huggingface", name="own")

    assert error.where == "tokenizer.name: own"
    assert error.found.startswith("vocab.txt: ")


HUB_TOKENIZER = {"kind": "huggingface", "name": "team/tiny", "revision": "v1"}


def publish(hub: Hub, folder: Path) -> str:
    """Put the files of a folder on the hub as team/tiny; return the commit."""
    return hub.push("team/tiny", {of.name: of.read_bytes() for of in folder.iterdir()}, branch="v1")


@contextmanager
def asking(endpoint: str | None, cache: Path) -> Iterator[None]:
    """Let the hub's library ask a server on this machine, or none at all."""
    url = endpoint or "http://127.0.0.1:1"
    fields = {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": endpoint is None,
        "HF_HUB_CACHE": str(cache),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fields.items():
            patch.setattr(f"huggingface_hub.constants.{name}", value)
        yield


def test_a_revision_on_the_hub_is_pinned_to_its_commit_and_needs_no_network_again(
    hub: Hub, tmp_path: Path
):
    published = save_json(byte_level_bpe(), tmp_path / "published", eos_token="</s>")
    commit = publish(hub, published)
    dataset = declare_texts(tmp_path, **HUB_TOKENIZER)

    with asking(hub.url, tmp_path / "cache"):
        folder, first = save_tokenizer(dataset).folder, token_lists(tokenize(dataset))

    with asking(None, tmp_path / "none"):
        second = tokens_of(tmp_path, FEW_TEXTS[::-1], HUB_TOKENIZER)
    origin = read_manifest(folder).details["origin"]
    assert origin == {"hub_id": "team/tiny", "commit": commit}
    assert "GET /api/models/team/tiny/revision/v1" in hub.asked
    saved, kept = (path / "tokenizer.json" for path in (published, folder))
    assert kept.read_bytes() == saved.read_bytes()
    assert second == first[::-1]


def test_a_hub_tokenizer_without_tokenizer_json_goes_through_transformers(hub: Hub, tmp_path: Path):
    publish(hub, byte_level_files(tmp_path / "published"))

    with asking(hub.url, tmp_path / "cache"):
        tokens = tokens_of(tmp_path, FEW_TEXTS, HUB_TOKENIZER)

    assert tokens == few_of_byte_level()


def test_a_bare_name_may_have_been_meant_for_an_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(TokenizerError) as raised:
        download_tokenizer(TokenizerConfig(kind="huggingface", name="gpt3"), tmp_path)

    assert raised.value.expected.startswith("an encoding of tiktoken (gpt2, ")
    assert raised.value.remedy.startswith("did you mean 'gpt2'? Else correct the name")


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_hub_id_that_does_not_exist_or_cannot_be_asked_for_is_an_error(
    is_reached: bool, hub: Hub, tmp_path: Path
):
    with asking(hub.url if is_reached else "http://127.0.0.1:1", tmp_path / "cache"):
        error = error_of(tmp_path, **{**HUB_TOKENIZER, "name": "team/other"})

    found = "RepositoryNotFoundError: " if is_reached else "ConnectError: "
    assert error.where == "tokenizer.name: team/other"
    assert error.found.startswith(found)


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
    config = {"tokenizer_class": "T5Tokenizer"}
    save(tmp_path, train_model(model_type="unigram"), config, "spiece.model")

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

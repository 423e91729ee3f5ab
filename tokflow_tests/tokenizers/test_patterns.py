import json
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

from tokflow.errors import ConfigError
from tokflow.pipeline.mixture import graph_of
from tokflow.store.manifest import read_manifest
from tokflow.tokenizers import training
from tokflow.tokenizers.engines.gate import open_engine
from tokflow.tokenizers.patterns import PATTERNS, pre_tokenizer_fields
from tokflow.tokenizers.tokenizer import TokenizerConfig
from tokflow_tests.texts import awkward_strings
from tokflow_tests.tiny import declare_texts, save_tokenizer


@cache
def some_texts() -> tuple[str, ...]:
    return awkward_strings()[2_000:4_000]


OWN = r"\d|[^\d]+"


def split_of(pattern: str, text: str) -> list[str]:
    """Return the words of an ASCII text, with the space as ByteLevel spells it."""
    fields = {"pre_tokenizer": pre_tokenizer_fields(pattern), "model": {"type": "BPE"}}
    model = {"vocab": {}, "merges": [], **fields["model"]}
    whole = {"version": "1.0", "added_tokens": [], **fields, "model": model}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(whole))
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("gpt2", ["don", "'t", "Ġ(", "x", ")", "Ġ12345", "ĠGoNow"]),
        ("cl100k", ["don", "'t", "Ġ(", "x", ")", "Ġ", "123", "45", "ĠGoNow"]),
        ("llama3", ["don", "'t", "Ġ(", "x", ")", "Ġ", "123", "45", "ĠGoNow"]),
        ("qwen2", ["don", "'t", "Ġ(", "x", ")", "Ġ", "1", "2", "3", "4", "5", "ĠGoNow"]),
        ("o200k", ["don't", "Ġ(", "x", ")", "Ġ", "123", "45", "ĠGo", "Now"]),
        (OWN, ["don'tĠ(x)Ġ", "1", "2", "3", "4", "5", "ĠGoNow"]),
    ],
)
def test_each_pattern_splits_in_its_own_way(pattern: str, words: list[str]):
    assert split_of(pattern, "don't (x) 12345 GoNow") == words


@pytest.mark.parametrize("pattern", ["gpt2", "o200k", OWN])
def test_a_pattern_trains_as_the_tokenizers_library_trains_with_it(pattern: str, tmp_path: Path):
    dataset = declare_texts(
        tmp_path,
        some_texts(),
        kind="trained",
        special_tokens=["end"],
        vocab_size=701,
        pattern=pattern,
    )

    saved = save_tokenizer(dataset)

    reference = tokenizers.Tokenizer(models.BPE())
    is_gpt2 = pattern == "gpt2"
    split = pre_tokenizers.Split(Regex(PATTERNS.get(pattern, pattern)), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=is_gpt2)
    reference.pre_tokenizer = pre_tokenizers.Sequence([*[split] * (not is_gpt2), to_bytes])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, min_frequency=0, initial_alphabet=alphabet, show_progress=False
    )
    reference.train_from_iterator(some_texts(), trainer)
    made = json.loads((saved.folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert made["model"]["merges"] == json.loads(reference.to_str())["model"]["merges"]
    assert len(made["model"]["merges"]) == 444
    assert made["pre_tokenizer"] == pre_tokenizer_fields(pattern)
    origin = read_manifest(saved.folder).details["origin"]
    trainer = "gigatoken" if is_gpt2 else "tokenizers"
    assert (origin["trainer"], origin["pattern"]) == (trainer, pattern)
    assert open_engine(saved).name == ("tokenizers" if pattern == OWN else "gigatoken")


def test_a_pair_that_stands_once_in_the_text_is_merged_too(tmp_path: Path):
    dataset = declare_texts(
        tmp_path, ["ab", "c"], kind="trained", vocab_size=1_000, pattern="qwen2"
    )

    saved = save_tokenizer(dataset)

    model = json.loads((saved.folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    assert model["merges"] == [["a", "b"]]
    assert saved.vocab_size == 258


def test_text_to_train_on_does_not_depend_on_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(training, "READ_BYTES", 1)
    (tmp_path / "text").write_bytes("aé\udcffaé\udcff".encode(errors="surrogateescape"))

    merges = training._train_tokenizers(tmp_path / "text", 2, "qwen2")

    assert b"".join(merges[-1]).decode() == "aé"


def test_another_pattern_is_another_tokenizer(tmp_path: Path):
    declared = (declare_texts(tmp_path, kind="trained", pattern=of) for of in ("gpt2", "qwen2"))
    first, second = (graph_of(of).output("tokenizer").recipe for of in declared)

    assert first.fingerprint != second.fingerprint


def test_a_broken_regular_expression_is_an_error_with_the_librarys_complaint():
    with pytest.raises(ConfigError) as caught:
        TokenizerConfig(kind="trained", pattern="(a|b")

    assert (caught.value.where, caught.value.found) == (
        "tokenizer.pattern",
        "'(a|b': end pattern with unmatched parenthesis",
    )

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

from tokflow.errors import ConfigError, RawFileError, TokenizerError
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.store.manifest import read_manifest
from tokflow.tokenizers import PATTERNS, pre_tokenizer_fields, training
from tokflow.tokenizers.engines.gate import open_engine
from tokflow.tokenizers.stage import tokenizer_source
from tokflow.tokenizers.tokenizer import TokenizerConfig
from tokflow.tokenizers.training import SEPARATOR, train_tokenizer
from tokflow_tests.texts import awkward_strings
from tokflow_tests.tiny import declare_texts, save_tokenizer, write_texts


@cache
def some_texts() -> tuple[str, ...]:
    return awkward_strings()[2_000:6_000]


def train(folder: Path, texts: tuple[str, ...] | None, **tokenizer: object) -> Path:
    dataset = declare_texts(folder, texts, **{"kind": "trained", **tokenizer})
    return save_tokenizer(dataset).folder / "tokenizer.json"


def ids_of(path: Path) -> dict[str, int]:
    return tokenizers.Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)


def test_the_number_of_threads_does_not_matter(tmp_path: Path):
    text, made = tmp_path / "text", tmp_path / "merges"
    text.write_bytes(b"".join(text.encode() + SEPARATOR for text in some_texts()))
    program = (
        "import sys; from pathlib import Path;"
        "from tokflow.tokenizers.training import _find_merges;"
        "Path(sys.argv[2]).write_text(repr(_find_merges((Path(sys.argv[1]), 344, 'gpt2'), None)))"
    )

    command = [sys.executable, "-c", program, str(text), str(made)]
    env = {**os.environ, "RAYON_NUM_THREADS": "1"}
    subprocess.run(command, env=env, cwd=Path(__file__).parents[2], check=True)

    assert made.read_text() == repr(training._train(text, 344, "gpt2"))
    assert made.read_text().count("), (") == 343


@pytest.mark.parametrize("pattern", ["gpt2", "o200k"])
def test_the_order_in_which_files_are_listed_does_not_matter(pattern: str, tmp_path: Path):
    made = []
    for order in ((0, 1), (1, 0)):
        folder = tmp_path / str(order[0])
        dataset = declare_texts(folder, None, kind="trained", vocab_size=600, pattern=pattern)
        for index in (0, 1):
            write_texts(folder / "raw" / f"{index}.jsonl", some_texts()[index:1_000:2])
        origin = tokenizer_source(graph_of(dataset).output("tokenizer"))
        files = {key: origin.raw_files[key] for key in (f"{index}.jsonl" for index in order)}
        (folder / "made").mkdir()
        path = folder / "made" / "tokenizer.json"
        train_tokenizer(files, dataset.documents, dataset.tokenizer, path)
        made.append(path.read_bytes())

    assert made[0] == made[1]


def test_ids_are_the_bytes_then_merges_then_special_tokens(tmp_path: Path):
    path = train(tmp_path, ("ab ab ab",), vocab_size=260, special_tokens=["<x>", "<y>"])

    ids = ids_of(path)
    assert sorted(ids.values()) == list(range(260))
    assert [ids["a"], ids["b"], ids["Ġ"]] == [97, 98, 32]
    learnt = {name: token_id for name, token_id in ids.items() if token_id >= 256}
    assert learnt == {"ab": 256, "Ġab": 257, "<x>": 258, "<y>": 259}


@pytest.mark.parametrize(
    ("texts", "fields", "learnt"),
    [
        (("ab",), {}, {"ab"}),
        ((), {}, set()),
        (("", ""), {}, set()),
        (("a", "b") * 50, {}, set()),  # no merge crosses two documents
        (("ab", "cd", "ef"), {"max_characters": 3}, {"ab", "cd"}),  # of each file
    ],
)
def test_all_that_the_text_has_is_learnt_and_no_more(
    texts: tuple[str, ...], fields: dict[str, int], learnt: set[str], tmp_path: Path
):
    ids = ids_of(train(tmp_path, texts, vocab_size=1000, **fields))

    assert {name for name, id_ in ids.items() if id_ >= 256} == {*learnt, "<|endoftext|>"}
    assert sorted(ids.values()) == list(range(257 + len(learnt)))


def test_only_the_named_files_are_read(tmp_path: Path):
    write_texts(tmp_path / "raw" / "a.jsonl", ["ab"])
    write_texts(tmp_path / "raw" / "b.jsonl", ["cd"])

    path = train(tmp_path, None, vocab_size=1000, files="b*")

    learnt = {name for name, token_id in ids_of(path).items() if token_id >= 256}
    assert learnt == {"cd", "<|endoftext|>"}


def test_a_pattern_that_matches_no_file_is_an_error(tmp_path: Path):
    dataset = declare_texts(tmp_path, kind="trained", files="*.parquet")

    with pytest.raises(TokenizerError) as caught:
        make_output(graph_of(dataset), "tokenizer", "tokenizer")

    assert caught.value.where == "tokenizer.files"


def test_a_special_token_that_is_also_made_from_the_text_is_an_error(tmp_path: Path):
    dataset = declare_texts(
        tmp_path, ["ab ab"], kind="trained", vocab_size=1000, special_tokens=["ab"]
    )

    with pytest.raises(TokenizerError) as caught:
        make_output(graph_of(dataset), "tokenizer", "tokenizer")

    assert (caught.value.where, caught.value.found) == ("tokenizer.special_tokens", "'ab'")


def test_a_file_that_is_not_the_one_that_was_hashed_trains_nothing(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "one two one two"}\n')
    trained = {"kind": "trained", "vocab_size": 300}
    attributes = {"name": "small", "raw": {"files": ["a.jsonl"]}, "tokenizer": trained}
    graph = graph_of(make_dataset(attributes, base=tmp_path, where="test"))
    graph.raw_file("a.jsonl")
    (tmp_path / "a.jsonl").write_text('{"text": "quite another text"}\n')

    with pytest.raises(RawFileError, match=r"a\.jsonl"):
        make_output(graph, "tokenizer", "tokenizer")
    assert not (tmp_path / "data/store/small/tokenizer").exists()


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
    how = {"kind": "trained", "special_tokens": ["qed"], "vocab_size": 701, "pattern": pattern}
    dataset = declare_texts(tmp_path, some_texts()[:2_000], **how)

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
    reference.train_from_iterator(some_texts()[:2_000], trainer)
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

    assert caught.value.where == "tokenizer.pattern"

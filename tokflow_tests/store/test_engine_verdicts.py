"""Where gigatoken is found wrong once, nothing that it made of that tokenizer stays in use."""

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.errors import TokenizerError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.results import BuildResult
from tokflow.pipeline.run import build_dataset
from tokflow.split.rule import PartConfig, SplitConfig
from tokflow.store.store import Store
from tokflow_tests.outputs import problems_of, token_lists
from tokflow_tests.tiny import build, save_tokenizer, write_texts
from tokflow_tests.wrong_engine import use_wrong_engine

UNSEEN = ["strange", "x", "y", "z", "u", "v"]
"""The first document is not compared with the reference in the first batch of a run."""


@pytest.fixture(autouse=True)
def _wrong_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wrong_engine(monkeypatch)


def declare(folder: Path, name: str = "one", **tokenizer: Any) -> Dataset:
    """Return a dataset over `<folder>/raw` whose tokenizer is that of every other of its store."""
    tokenizer_json = folder / "bytes.json"
    if not tokenizer_json.exists():
        write_texts(folder / "train" / "raw.jsonl", ["ab"])
        trained = make_dataset(
            {
                "name": "train",
                "raw": {"files": "train/*"},
                "tokenizer": {"kind": "trained", "vocab_size": 257},
                "store": "elsewhere",
            },
            base=folder,
            where="test",
        )
        saved = save_tokenizer(trained).folder / "tokenizer.json"
        tokenizer_json.write_bytes(saved.read_bytes())
    attributes = {
        "name": name,
        "raw": {"files": f"{name}/*.jsonl"},
        "tokenizer": {
            "kind": "file", "name": "bytes.json", "eos_token": "<|endoftext|>", **tokenizer
        },
        "packing": {"sequence_length": 4},
        "exports": ["bin"],
        "store": "store",
    }  # fmt: skip
    return make_dataset(attributes, base=folder, where="test")


def shards(dataset: Dataset) -> dict[str, list[list[int]]]:
    graph = graph_of(dataset)
    return {key: token_lists(graph.open_tokens(key)) for key in graph.sources}


def engines(built: BuildResult) -> dict[str, str]:
    return {
        made.output.name: made.run["engine"] for made in built.made if made.output.stage == "tokens"
    }


def true_tokens(*texts: str) -> list[list[int]]:
    return [[*text.encode(), 256] for text in texts]


def test_a_verdict_on_one_file_is_one_on_the_files_before_it(tmp_path: Path):
    write_texts(tmp_path / "one" / "a.jsonl", UNSEEN)
    write_texts(tmp_path / "one" / "b.jsonl", ["strange"])

    built = build(declare(tmp_path))

    assert shards(declare(tmp_path)) == {
        "a.jsonl": true_tokens(*UNSEEN),
        "b.jsonl": true_tokens("strange"),
    }
    assert engines(built) == {"a.jsonl": "tokenizers", "b.jsonl": "tokenizers"}
    assert build(declare(tmp_path)).num_new == 0


def test_what_earlier_runs_made_is_made_again_up_to_the_export(tmp_path: Path):
    write_texts(tmp_path / "one" / "a.jsonl", UNSEEN)
    first = build(declare(tmp_path))
    wrong = first.export("bin").output.folder / "train.bin"
    write_texts(tmp_path / "one" / "b.jsonl", ["strange"])

    built = build(declare(tmp_path))

    right = built.export("bin").output.folder / "train.bin"
    assert engines(first) == {"a.jsonl": "gigatoken"}
    expected = [id_ for ids in true_tokens(*UNSEEN, "strange") for id_ in ids]
    assert list(memoryview(right.read_bytes()).cast("H"))[: len(expected)] == expected
    assert list(memoryview(wrong.read_bytes()).cast("H"))[:8] == [*b"egnarts", 256]
    stages = ["tokens", "split"]
    new = {(made.output.stage, made.output.name) for made in built.made if made.is_new}
    assert new == {("export", "bin"), *product(stages, ["a.jsonl", "b.jsonl"])}
    assert len(built.made) == 1 + len(new)  # and the tokenizer


def test_a_verdict_on_a_piece_of_a_cut_document_is_one_on_the_tokens_of_all_files(tmp_path: Path):
    write_texts(tmp_path / "one" / "a.jsonl", ["strange!", *UNSEEN[1:]])
    write_texts(tmp_path / "one" / "b.jsonl", ["b"])
    parts = {"train": PartConfig(characters=7), "validation": PartConfig(start=7)}
    split = SplitConfig(parts=parts, boundary="character")
    dataset = declare(tmp_path).model_copy(update={"split": split})

    built = build(dataset)

    assert engines(built) == {"a.jsonl": "tokenizers", "b.jsonl": "tokenizers"}
    assert shards(dataset)["a.jsonl"] == true_tokens("strange!", *UNSEEN[1:])
    cut = graph_of(dataset).open_split("a.jsonl").cut_tokens()
    assert cut.tolist() == [*b"strange", 256, *b"!", 256]
    stages = [made.output.stage for made in built.made]
    assert all(made.is_new for made in built.made)
    assert stages == ["tokenizer", *["tokens"] * 2, *["split"] * 2, "export"]


def test_a_plan_says_that_gigatoken_was_wrong(tmp_path: Path):
    for name in ("one", "two"):
        write_texts(tmp_path / name / "a.jsonl", UNSEEN)
        build(declare(tmp_path, name))
    write_texts(tmp_path / "two" / "b.jsonl", ["strange"])
    build(declare(tmp_path, "two"))

    plan = make_plan(declare(tmp_path, "one"))

    assert plan.missing[0].reason == (
        "input changed (gigatoken was found wrong with this tokenizer)"
    )
    assert engines(build(declare(tmp_path, "one"))) == {"a.jsonl": "tokenizers"}


def test_gigatoken_by_force_fails_then_and_in_the_next_run(tmp_path: Path):
    write_texts(tmp_path / "one" / "a.jsonl", ["strange"])
    dataset = declare(tmp_path, engine="gigatoken")

    failed = [build_dataset(dataset).failed for _ in range(2)]

    for [failure] in failed:
        assert isinstance(failure.error, TokenizerError)
        assert str(failure.explained).startswith(
            "tokenizer.engine: gigatoken: expected the tokens of tokenizers, found gigatoken was "
            "wrong: gigatoken: 'strange' became [101, 103, "
        )


def test_a_verdict_names_what_it_is_of_and_counts_even_where_it_cannot_be_read(tmp_path: Path):
    write_texts(tmp_path / "one" / "a.jsonl", ["strange"])
    dataset = declare(tmp_path)

    build(dataset)

    tokenizer = graph_of(dataset).tokenizer
    [path] = (tmp_path / "store" / ".verdicts").iterdir()
    verdict = json.loads(path.read_text())
    assert path.name == f"{tokenizer.fingerprint[:16]}.json"
    assert verdict["engine"] == "gigatoken"
    assert verdict["version"].startswith("0.")
    assert verdict["tokenizer_fingerprint"] == tokenizer.fingerprint
    assert verdict["difference"] == tokenizer.verdict
    assert "'strange' became [101, 103, 110," in tokenizer.verdict
    path.write_text("")
    assert "cannot be read" in str(graph_of(declare(tmp_path)).tokenizer.verdict)
    assert build(declare(tmp_path)).num_new == 0


def test_a_copy_of_a_dataset_takes_the_verdict_along(tmp_path: Path):
    for name in ("one", "two"):
        write_texts(tmp_path / name / "a.jsonl", UNSEEN)
    write_texts(tmp_path / "two" / "b.jsonl", ["strange"])
    for name in ("two", "one"):  # whose verdict is that of the other
        build(declare(tmp_path, name))
    shutil.copytree(tmp_path / "store" / "one", tmp_path / "copy" / "one", symlinks=True)

    copied = declare(tmp_path).model_copy(update={"store": Store(tmp_path / "copy")})

    assert build(copied).num_new == 0
    assert engines(build(copied)) == {"a.jsonl": "tokenizers"}
    write_texts(tmp_path / "one" / "b.jsonl", ["b"])
    assert engines(build(copied))["b.jsonl"] == "tokenizers"
    assert len(list((tmp_path / "copy" / ".verdicts").iterdir())) == 1


def test_verify_says_which_shards_no_run_uses_any_more(tmp_path: Path):
    write_texts(tmp_path / "one" / "a.jsonl", UNSEEN)
    [old] = [made for made in build(declare(tmp_path)).made if made.output.stage == "tokens"]
    write_texts(tmp_path / "one" / "b.jsonl", ["strange"])
    build(declare(tmp_path))

    found = {one.folder: one.notes for one in verify_path(tmp_path / "store")}

    noted = [folder for folder, notes in found.items() if any("gigatoken" in n for n in notes)]
    assert noted == [old.output.folder]
    assert found[old.output.folder] == (
        "gigatoken made it, and was found wrong with its tokenizer: no run uses it",
    )


def test_verify_finds_what_no_run_has_compared_and_the_next_run_mends_it(tmp_path: Path):
    write_texts(tmp_path / "one" / "a.jsonl", UNSEEN)
    dataset = declare(tmp_path)
    build(dataset)

    found = [one for one in verify_dataset(dataset) if one.problems]

    assert [one.name for one in found] == ["tokens of a.jsonl"]
    assert found[0].problems[0].startswith("a.jsonl:0: expected the tokens [115, 116, 114, ")
    assert found[0].notes[-1] == (
        "gigatoken made it; `tokflow run` makes all of them with the reference"
    )
    assert engines(build(dataset)) == {"a.jsonl": "tokenizers"}
    assert shards(dataset) == {"a.jsonl": true_tokens(*UNSEEN)}
    assert problems_of(dataset) == []

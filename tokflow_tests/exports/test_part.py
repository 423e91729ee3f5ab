"""Parts of exports: their streams, and their sequences in the order of a seed."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.exports import Part, part_sequences
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.sequences.segments import Sequences
from tokflow.split.permutation import Permutation
from tokflow_tests.chats import chat_dataset
from tokflow_tests.outputs import parts, tokens_of
from tokflow_tests.tiny import EOS, build, declare

BOS = 257


def part_of(folder: Path, files: dict[str, list[str]], **attributes: Any) -> tuple[Dataset, Part]:
    dataset = declare(folder, files, exports=["bin"], **attributes)
    build(dataset)
    return dataset, parts(dataset, "bin")["train"]


def eos_first(part: Part) -> list[int]:
    return [token for run in part.stream(eos_first=True) for token in run.tolist()]


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_eos_moves_before_each_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
):
    monkeypatch.setattr("tokflow.exports.part.TOKENS_AT_ONCE", at_once)
    _, part = part_of(tmp_path, {"a.jsonl": ["ab", "", "c"], "b.jsonl": ["d"]})

    found = eos_first(part)

    assert found == [EOS, *b"ab", EOS, EOS, *b"c", EOS, *b"d"]


def test_the_index_of_moved_eos_names_the_document_it_ends(tmp_path: Path):
    _, part = part_of(tmp_path, {"a.jsonl": ["ab", "", "c"]})

    runs = [row for table in part.stream_index(eos_first=True) for row in table.to_pylist()]

    columns = ("position", "num_tokens", "row", "token_in_piece")
    assert [tuple(run[name] for name in columns) for run in runs] == [
        (0, 1, 0, 2),
        (1, 2, 0, 0),
        (3, 1, 1, 0),
        (4, 1, 2, 1),
        (5, 1, 2, 0),
    ]


def test_documents_that_begin_with_bos_stay_as_they_are(tmp_path: Path):
    tokenizer = {"kind": "bytes", "bos": "first", "eos": "none"}
    _, part = part_of(tmp_path, {"a.jsonl": ["ab", "c"]}, tokenizer=tokenizer)

    assert eos_first(part) == tokens_of(part) == [BOS, *b"ab", BOS, *b"c"]


def test_eos_moves_before_each_side_of_a_cut_document(tmp_path: Path):
    ranges = {"train": {"start": 0, "characters": 3}, "rest": {"start": 3, "characters": 9}}
    split = {"boundary": "character", "parts": ranges}
    dataset, part = part_of(tmp_path, {"a.jsonl": ["ab", "cde"]}, split=split)

    assert eos_first(part) == [EOS, *b"ab", EOS, *b"c"]
    assert eos_first(parts(dataset, "bin")["rest"]) == [EOS, *b"de"]


@pytest.mark.parametrize(
    ("eos", "changed", "where"),
    [("none", {}, "train"), ("last", {"eos_id": 7}, "a.jsonl: document 0"),
     ("last", {"vocab_size": 2**31 + 1}, "tokenizer")],
)  # fmt: skip
def test_tokens_without_a_mark_of_another_eos_or_that_are_no_int32_are_refused(
    eos: str, changed: dict[str, int], where: str, tmp_path: Path
):
    _, part = part_of(tmp_path, {"a.jsonl": ["ab", "c"]}, tokenizer={"kind": "bytes", "eos": eos})

    with pytest.raises(ConfigError) as raised:
        eos_first(replace(part, **changed))

    assert raised.value.where == where


SHUFFLE = {"seed": 5, "sequences": True}

SPLIT = {"parts": {"train": {"start": 0, "characters": 90}, "rest": {"start": 90}}}

STRATEGIES = ["concat", "greedy", "best_fit", "one_document"]


def texts(num_files: int = 4) -> dict[str, list[str]]:
    choose = random.Random(3)
    return {
        f"{name}.jsonl": [f"{name}{number}" + "x" * choose.randint(0, 20) for number in range(9)]
        for name in "abcdefgh"[:num_files]
    }


def declared(folder: Path, **attributes: Any) -> Dataset:
    packing = {"sequence_length": 8, **attributes.pop("packing", {})}
    exports = attributes.pop("exports", ["parquet"])
    return declare(folder, texts(), packing=packing, exports=exports, split=SPLIT, **attributes)


def joined(part: Part, at_once: int | None = None) -> Sequences:
    return Sequences.joined(list(part.sequences(at_once)))


def assert_equal(found: Sequences, expected: Sequences) -> None:
    for name in ("token_ids", "segment_ids", "position_ids", "loss_mask"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences_of_all_files_and_tails_are_in_the_order_of_the_seed(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    packing = {"strategy": strategy, "overlap": 2, "label_token": True}
    plain = declared(tmp_path, packing=packing)
    build(plain)
    dataset = declared(tmp_path, packing=packing, shuffle=SHUFFLE)

    for name, part in parts(dataset).items():
        before = joined(parts(plain)[name])
        order = Permutation(part.num_sequences, 5, f"sequences:{name}")
        expected = before[order.at(np.arange(len(before)))]
        assert_equal(joined(part), expected)
        monkeypatch.setattr(part_sequences, "TOKENS_GATHERED", 30)
        assert_equal(joined(part, at_once=2), expected)
        monkeypatch.undo()


def test_the_loss_mask_of_chats_goes_with_their_tokens(tmp_path: Path):
    fields = {"packing": {"sequence_length": 16}, "exports": ["parquet"]}
    plain = chat_dataset(tmp_path, **fields)
    build(plain)

    [part] = parts(chat_dataset(tmp_path, None, shuffle=SHUFFLE, **fields)).values()

    order = Permutation(part.num_sequences, 5, "sequences:train").at(np.arange(part.num_sequences))
    assert_equal(joined(part), joined(parts(plain)["train"])[order])


def test_a_shuffle_is_in_the_recipe_of_exports_of_sequences_alone(tmp_path: Path):
    exports = ["parquet", "bin"]
    build(declared(tmp_path, exports=exports))
    dataset = declared(tmp_path, exports=exports, shuffle=SHUFFLE)
    plan = make_plan(dataset)

    assert [(item.name, item.reason) for item in plan.missing] == [
        ("parquet", "config changed (shuffle is new)")
    ]
    recipe = graph_of(dataset).output("export", variant=dataset.exports[0].name).recipe
    assert recipe.config["shuffle"] == {"seed": 5, "version": 1}

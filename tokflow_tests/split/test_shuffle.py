from pathlib import Path
from typing import Any

import numpy as np

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.plan import make_plan
from tokflow.split.permutation import document_keys
from tokflow.tokens.shard import Origins
from tokflow_tests.tiny import build, declare, write_raw

SHUFFLE = {"seed": 5, "documents": "file"}

LETTERS = "abcdefghijklmnop"

FILES = {f"{name}.jsonl": [f"{name}{letter}!" for letter in LETTERS] for name in "xyz"}


def declared(folder: Path, **shuffle: Any) -> Dataset:
    return declare(folder, FILES, exports=["bin"], shuffle={**SHUFFLE, **shuffle})


def test_a_document_that_comes_or_goes_moves_no_other(tmp_path: Path):
    keys = document_keys(Origins(["x", "y"], [0, 8]), np.arange(20), 5)

    assert keys[:8].tolist() == document_keys(Origins(["x"], [0]), np.arange(8), 5).tolist()
    assert keys[8:].tolist() == document_keys(Origins(["y"], [0]), np.arange(12), 5).tolist()
    assert (
        keys[[1, 5, 9]].tolist()
        == document_keys(Origins(["x", "y"], [0, 8]), np.array([1, 5, 9]), 5).tolist()
    )


def test_the_order_of_a_file_is_the_same_for_ever():
    keys = document_keys(Origins(["a.jsonl"], [0]), np.arange(8), 1337)

    assert np.argsort(keys).tolist() == [5, 4, 3, 0, 7, 1, 6, 2]


def test_the_order_of_keys_has_no_trend():
    keys = document_keys(Origins(["a.jsonl"], [0]), np.arange(10**5), 1337)

    ranks = np.argsort(np.argsort(keys))
    neighbours = np.corrcoef(ranks[:-1], ranks[1:])[0, 1]
    trend = np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]
    assert abs(neighbours) < 5 / len(ranks) ** 0.5
    assert abs(trend) < 5 / len(ranks) ** 0.5


def test_a_new_file_makes_no_other_split_again(tmp_path: Path):
    build(dataset := declared(tmp_path))
    write_raw(tmp_path, {"a.jsonl": ["new"]})

    new = [made.output.name for made in build(dataset).made if made.is_new]

    assert new == ["a.jsonl", "a.jsonl", "bin"]


def test_the_seed_remakes_splits_and_no_token(tmp_path: Path):
    build(declared(tmp_path))

    plan = make_plan(declared(tmp_path, seed=6))

    assert [(item.stage, item.reason) for item in plan.missing if item.name == "x.jsonl"] == [
        ("split", "config changed (shuffle.seed: 5 to 6)")
    ]

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify.verification import verify_dataset, verify_path
from tokflow.exports.reading import open_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.split.shuffle import document_keys
from tokflow.tokens.origins import Origins
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.outputs import parts
from tokflow_tests.tiny import EOS, build, declare, write_raw

SHUFFLE = {"seed": 5, "documents": "file"}

HALVES = {"parts": {"train": {"start": 0, "characters": 22}, "rest": {"start": 22}}}

SPLITS: dict[str, dict[str, Any]] = {
    "document": HALVES,
    "character": {  # the part that comes first takes the second side of what is cut
        "boundary": "character",
        "parts": {"rest": {"start": 22}, "train": {"start": 0, "characters": 22}},
    },
    "hash_fraction": {"parts": {"train": {"hash_fraction": 0.6}, "rest": {"hash_fraction": 0.4}}},
}

LETTERS = "abcdefghijklmnop"

FILES = {f"{name}.jsonl": [f"{name}{letter}!" for letter in LETTERS] for name in "xyz"}


def declared(folder: Path, files: Any = FILES, **attributes: Any) -> Dataset:
    exports = attributes.pop("exports", ["bin"])
    return declare(folder, files, exports=exports, **{"split": HALVES, **attributes})


def documents_in(folder: Path, part: str) -> list[str]:
    tokens = [token for some in open_export(folder).tokens(part) for token in some.tolist()]
    return bytes(token if token != EOS else 32 for token in tokens).decode().split()


def in_order(files: Any, part: list[str], seed: int = 5) -> list[str]:
    """Return the documents of a part, file by file in the order of their keys."""
    found = []
    for key, texts in files.items():
        keys = document_keys(Origins([key], [0]), np.arange(len(texts)), seed)
        found += [texts[row] for row in np.argsort(keys) if texts[row] in part]
    return found


def test_documents_of_a_part_are_in_the_order_of_the_seed_within_their_file(tmp_path: Path):
    plain = build(declared(tmp_path)).export("bin").folder
    shuffled = build(declared(tmp_path, shuffle=SHUFFLE)).export("bin").folder

    for part in ("train", "rest"):
        before = documents_in(plain, part)
        assert documents_in(shuffled, part) == in_order(FILES, before) != before


@pytest.mark.parametrize(
    ("split", "group"),
    [
        (SPLITS["document"], 2),
        (SPLITS["character"], None),
        (SPLITS["hash_fraction"], 2),
    ],
    ids=SPLITS,
)
def test_parts_and_documents_stay_whole_and_everything_leads_through(
    split: dict[str, Any], group: int | None, tmp_path: Path
):
    formats = ["bin", "parquet"]
    raw = {"files": "raw/*.jsonl", **({"group": group} if group else {})}
    fields = {"split": split, "exports": formats, "raw": raw}
    build(plain := declared(tmp_path, **fields))
    before = parts(plain, "bin")
    dataset = declared(tmp_path, shuffle={**SHUFFLE, "sequences": True}, **fields)
    built = build(dataset)

    for name, part in parts(dataset, "bin").items():
        assert part.num_tokens == before[name].num_tokens
        assert sorted(part.document_lengths()) == sorted(before[name].document_lengths())
        for format_ in formats:
            folder = built.export(format_).folder
            for origin in trace_tokens(folder, part=name, start=0, stop=10**6):
                text = FILES[origin.raw_file][origin.row]
                assert text[origin.char_start : origin.char_stop] == origin.text
    assert [problem for found in verify_dataset(dataset) for problem in found.problems] == []
    assert [problem for found in verify_path(dataset.folder) for problem in found.problems] == []


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
    build(dataset := declared(tmp_path, shuffle=SHUFFLE))
    write_raw(tmp_path, {"a.jsonl": ["new"]})

    new = [made.output.name for made in build(dataset).made if made.is_new]

    assert new == ["a.jsonl", "a.jsonl", "bin"]


def test_the_seed_remakes_splits_and_no_token(tmp_path: Path):
    build(declared(tmp_path, shuffle=SHUFFLE))

    plan = make_plan(declared(tmp_path, shuffle={**SHUFFLE, "seed": 6}))

    assert [(item.stage, item.reason) for item in plan.missing if item.name == "x.jsonl"] == [
        ("split", "config changed (shuffle.seed: 5 to 6)"),
    ]


def test_manifests_say_the_seed_and_the_version(tmp_path: Path):
    dataset = declared(tmp_path, shuffle=SHUFFLE)
    built = build(dataset)
    graph = graph_of(dataset)

    order = {"seed": 5, "version": 1}
    assert graph.split("x.jsonl").manifest().config["shuffle"] == order
    assert built.export("bin").manifest.details["document_order"] == order


def test_the_loss_mask_of_chats_goes_with_their_documents(tmp_path: Path):
    build(plain := chat_dataset(tmp_path, CHATS * 3, exports=["bin"]))
    dataset = chat_dataset(tmp_path, None, exports=["bin"], shuffle=SHUFFLE)
    build(dataset)

    found, expected = (_documents_and_masks(each) for each in (dataset, plain))

    assert sorted(found) == sorted(expected) != found != expected


def _documents_and_masks(dataset: Dataset) -> list[tuple[list[int], list[int]]]:
    [part] = parts(dataset, "bin").values()
    ends = np.cumsum(part.document_lengths())[:-1]
    both = (
        np.split(np.concatenate(list(of)), ends) for of in (part.stream(), part.stream_loss_mask())
    )
    return [(tokens.tolist(), mask.tolist()) for tokens, mask in zip(*both, strict=True)]

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.exports import Part
from tokflow.pipeline.dataset import Dataset
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

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.sequences.segments import FileSequences, fill_sequences
from tokflow_tests.outputs import content, int64, parts, rows_of
from tokflow_tests.tiny import EOS, build, declare


def opened(dataset: Dataset, key: str) -> FileSequences:
    graph = graph_of(dataset)
    return graph.open(graph.output("sequences", key))


@pytest.mark.parametrize(
    ("side", "token_ids", "segment_ids", "position_ids"),
    [("right", [3, 3, 4, 9], [1, 1, 2, 0], [0, 1, 0, 0]),
     ("left", [9, 3, 3, 4], [0, 1, 1, 2], [0, 0, 1, 0])],
)  # fmt: skip
def test_segments_are_counted_in_each_row_and_positions_in_each_segment(
    side: Any, token_ids: list[int], segment_ids: list[int], position_ids: list[int]
):
    rows = fill_sequences(
        np.array([1, 1, 1, 2, 3, 3, 4], dtype="<u2"),
        int64(0, 0, 1, 1),
        int64(3, 1, 2, 1),
        sequence_length=4,
        pad_id=9,
        padding_side=side,
    )

    assert rows.token_ids.tolist() == [[1, 1, 1, 2], token_ids]
    assert rows.segment_ids.tolist() == [[1, 1, 1, 2], segment_ids]
    assert rows.position_ids.tolist() == [[0, 1, 2, 0], position_ids]
    assert rows.loss_mask.tolist() == [[True] * 4, [of != 0 for of in segment_ids]]


def test_a_document_cut_by_the_edge_starts_again_at_position_zero(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["aa", "b", "ccc"]}, exports=["parquet"])
    build(dataset)

    [rows] = parts(dataset)["train"].sequences()

    assert rows.token_ids.tolist() == [[*b"aa", EOS, *b"b"], [EOS, *b"ccc"], [EOS] * 4]
    assert rows.segment_ids.tolist() == [[1, 1, 1, 2], [1, 2, 2, 2], [1, 0, 0, 0]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 0], [0, 0, 1, 2], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("texts", "packing", "num_sequences", "num_padding"),
    [(["abcd", "ef"], {}, 2, 0), (["abcde", "f"], {"strategy": "one_document", "pad_id": 0}, 3, 4)],
)
def test_the_rows_of_a_file_are_counted(
    texts: list[str], packing: dict[str, Any], num_sequences: int, num_padding: int, tmp_path: Path
):
    packing = {"sequence_length": 4, **packing}
    dataset = declare(tmp_path, {"a.jsonl": texts}, packing=packing)
    build(dataset)
    sequences = opened(dataset, "a.jsonl")

    assert sequences.manifest.counts == {
        "train.num_sequences": num_sequences,
        "train.num_tokens": 8,
        "train.num_padding": num_padding,
        "train.num_tail_tokens": 0,
        "train.num_repeated_tokens": 0,
        "train.num_cut_documents": 1,
        "train.num_truncated_documents": 0,
        "train.num_dropped_documents": 0,
        "train.num_dropped_tokens": 0,
    }
    assert len(sequences.tail("train")["document"]) == 0


def test_rows_and_tail_are_read_apart(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["abcd", "e"]})
    build(dataset)

    sequences = opened(dataset, "a.jsonl")

    assert sequences.manifest.counts["train.num_tail_tokens"] == 3
    assert {name: values.tolist() for name, values in sequences.segments("train").items()} == {
        "sequence": [0],
        "token_start": [0],
        "num_tokens": [4],
        "document": [0],
        "char_start": [0],
        "token_in_piece": [0],
        "num_repeated": [0],
    }
    assert sequences.tail("train")["token_start"].tolist() == [4, 5]
    assert sequences.tail("train")["token_in_piece"].tolist() == [4, 0]


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_sequences_are_the_same_however_many_are_asked_for(strategy: str, tmp_path: Path):
    files = {name: ["some text", "", "of it"] * 3 for name in ("a.jsonl", "b.jsonl", "c.jsonl")}
    packing = {"sequence_length": 4, "strategy": strategy}
    dataset = declare(tmp_path, files, packing=packing, exports=["parquet"])
    build(dataset)
    part = parts(dataset)["train"]
    [whole] = part.sequences()

    for rows in (1, 2, 5, 7, 1000):
        made = list(part.sequences(rows))
        sizes = [len(some) for some in made]
        assert sizes[:-1] == [rows] * (len(sizes) - 1)
        assert 0 < sizes[-1] <= rows
        for field in ("token_ids", "segment_ids", "position_ids"):
            joined = np.concatenate([getattr(some, field) for some in made])
            np.testing.assert_array_equal(joined, getattr(whole, field))


PACKINGS: dict[str, dict[str, Any]] = {
    "concat with labels, its tail dropped": {"label_token": True, "tail": "drop"},
    "best_fit that overlaps": {"strategy": "best_fit", "overlap": 2, "label_token": True},
    "pool": {"strategy": "pool", "pool_size": 2, "min_sample_length": 5},
}
FILES = {
    "a.jsonl": ["abc", "", "defghijklmnopqrstuv", "w", "xy"],
    "b.jsonl": ["0123456", "789", ""],
    "c.jsonl": ["ABCDEFGHIJKLMNOPQRSTUVWXYZ!", "#", "$%&", "/()=?"],
}


@pytest.mark.parametrize("fields", PACKINGS.values(), ids=PACKINGS)
def test_a_new_file_changes_no_other_files_rows_whatever_the_packing(fields: dict, tmp_path: Path):
    packing = {"sequence_length": 6, **fields}
    new, fields = FILES["b.jsonl"], {"packing": packing, "exports": ["parquet"]}
    old = {name: texts for name, texts in FILES.items() if texts != new}
    build(before := declare(tmp_path, old, **fields))
    kept = {name: content(opened(before, name).folder) for name in old}
    first, last = (opened(before, name).counts["train.num_sequences"] for name in old)
    old_rows = rows_of(parts(before)["train"])
    build(after := declare(tmp_path, {"b.jsonl": new}, **fields))

    new_rows = rows_of(parts(after)["train"])

    behind = first + opened(after, "b.jsonl").counts["train.num_sequences"]
    assert kept == {name: content(opened(after, name).folder) for name in old}
    assert new_rows[:first] == old_rows[:first]
    assert new_rows[behind:][:last] == old_rows[first:][:last]

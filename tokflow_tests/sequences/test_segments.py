from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tokflow.audit.verify.export import verify_export
from tokflow.audit.verify.remade import verify_sequences
from tokflow.pipeline.mixture import graph_of
from tokflow.sequences.segments import fill_sequences
from tokflow.store.manifest import read_manifest
from tokflow_tests.outputs import content, index_of, int64, parts, rows_of, stored
from tokflow_tests.tiny import EOS, build, declare, ids


def make(token_ids: list[int], sequence: list[int], num_tokens: list[int], **how: Any):
    return fill_sequences(
        np.array(token_ids, dtype="<u2"),
        int64(*sequence),
        int64(*num_tokens),
        sequence_length=4,
        pad_id=9,
        **how,
    )


def test_segments_are_counted_in_each_row_and_positions_in_each_segment():
    rows = make([1, 1, 1, 2, 3, 3, 4], [0, 0, 1, 1], [3, 1, 2, 1])

    assert rows.token_ids.tolist() == [[1, 1, 1, 2], [3, 3, 4, 9]]
    assert rows.segment_ids.tolist() == [[1, 1, 1, 2], [1, 1, 2, 0]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert rows.loss_mask.tolist() == [[True] * 4, [True, True, True, False]]


def test_padded_on_the_left_a_row_ends_with_its_last_token():
    rows = make([1, 1, 1, 2, 3, 3, 4], [0, 0, 1, 1], [3, 1, 2, 1], padding_side="left")

    assert rows.token_ids.tolist() == [[1, 1, 1, 2], [9, 3, 3, 4]]
    assert rows.segment_ids.tolist() == [[1, 1, 1, 2], [0, 1, 1, 2]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 0], [0, 0, 1, 0]]
    assert rows.loss_mask.tolist() == [[True] * 4, [False, True, True, True]]


def test_full_rows_are_not_copied():
    token_ids = np.arange(8, dtype="<u2")

    rows = fill_sequences(token_ids, int64(5, 6), int64(4, 4), sequence_length=4, pad_id=9)

    assert np.shares_memory(rows.token_ids, token_ids)
    assert rows.token_ids.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_segments_are_no_rows():
    rows = make([], [], [])

    assert len(rows) == 0
    assert rows.token_ids.shape == (0, 4)


def test_a_document_cut_by_the_edge_starts_again_at_position_zero(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["aa", "b", "ccc"]}, exports=["parquet"])
    build(dataset)

    [rows] = parts(dataset)["train"].sequences()

    assert rows.token_ids.tolist() == [[*b"aa", EOS, *b"b"], [EOS, *b"ccc"], [EOS] * 4]
    assert rows.segment_ids.tolist() == [[1, 1, 1, 2], [1, 2, 2, 2], [1, 0, 0, 0]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 0], [0, 0, 1, 2], [0, 0, 0, 0]]


def test_the_tail_of_a_file_is_kept_and_counted(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["abcd", "ef"]})
    build(dataset)

    sequences = graph_of(dataset).open_sequences("a.jsonl")

    assert sequences.manifest.counts == {
        "train.num_sequences": 2,
        "train.num_tokens": 8,
        "train.num_padding": 0,
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

    sequences = graph_of(dataset).open_sequences("a.jsonl")

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


def test_one_document_pads_each_documents_last_row(tmp_path: Path):
    dataset = declare(
        tmp_path,
        {"a.jsonl": ["abcde", "f"]},
        packing={"sequence_length": 4, "strategy": "one_document", "pad_id": 0},
    )
    build(dataset)

    sequences = graph_of(dataset).open_sequences("a.jsonl")

    assert sequences.manifest.counts == {
        "train.num_sequences": 3,
        "train.num_tokens": 8,
        "train.num_padding": 4,
        "train.num_tail_tokens": 0,
        "train.num_repeated_tokens": 0,
        "train.num_cut_documents": 1,
        "train.num_truncated_documents": 0,
        "train.num_dropped_documents": 0,
        "train.num_dropped_tokens": 0,
    }


@pytest.mark.parametrize(
    ("tail", "rows"),
    [
        ("pad", [[*b"abcd"], [EOS, *b"e", EOS, *b"f"], [*b"g", EOS, EOS, EOS]]),
        ("drop", [[*b"abcd"], [EOS, *b"e", EOS, *b"f"]]),
    ],
)
def test_the_tails_of_all_files_are_packed_together(tail: str, rows: list, tmp_path: Path):
    files = {"a.jsonl": ["abcd"], "b.jsonl": ["e"], "c.jsonl": ["fg"], "d.jsonl": []}

    dataset = declare(
        tmp_path, files, packing={"sequence_length": 4, "tail": tail}, exports=["parquet"]
    )
    build(dataset)

    assert rows_of(parts(dataset)["train"]) == rows
    assert parts(dataset)["train"].num_sequences == len(rows)
    assert parts(dataset)["train"].packed.packing_counts["num_dropped_tokens"] == (
        2 if tail == "drop" else 0
    )


@pytest.mark.parametrize("strategy", ["concat", "best_fit", "one_document"])
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
    "concat": {},
    "concat that overlaps": {"overlap": 3},
    "concat with labels, its tail dropped": {"label_token": True, "tail": "drop"},
    "concat of what is not too long": {"overlong": "drop", "min_sample_length": 4},
    "greedy": {"strategy": "greedy"},
    "first_fit with labels": {"strategy": "first_fit", "label_token": True},
    "best_fit": {"strategy": "best_fit"},
    "best_fit that overlaps": {"strategy": "best_fit", "overlap": 2, "label_token": True},
    "best_fit, its tail dropped": {"strategy": "best_fit", "tail": "drop"},
    "best_fit of what was truncated": {"strategy": "best_fit", "overlong": "truncate"},
    "pool": {"strategy": "pool", "pool_size": 2, "min_sample_length": 5},
    "one_document": {"strategy": "one_document", "overlap": 2, "min_sample_length": 4},
}

FILES = {
    "a.jsonl": ["abc", "", "defghijklmnopqrstuv", "w", "xy"],
    "b.jsonl": ["0123456", "789", ""],
    "c.jsonl": ["ABCDEFGHIJKLMNOPQRSTUVWXYZ!", "#", "$%&", "/()=?"],
}


@pytest.mark.parametrize("fields", PACKINGS.values(), ids=PACKINGS)
def test_each_token_of_the_split_is_read_back_or_declared(fields: dict, tmp_path: Path):
    packing = {"sequence_length": 6, "pad_id": 0, **fields}
    dataset = declare(tmp_path, FILES, packing=packing, exports=["parquet"])

    folder = build(dataset).export("parquet").output.folder

    manifest = read_manifest(folder)
    rows = [
        fields
        for path in sorted(folder.glob("train-*.parquet"))
        for fields in pq.read_table(path).to_pylist()
    ]
    length = 6 + packing.get("label_token", False)
    assert manifest.details["sequence_length"] == length
    runs = index_of(folder, "train")
    found = Counter()
    for number, row in enumerate(rows):
        here = [run for run in runs if run["position"] // length == number]
        assert sorted(here, key=lambda run: run["position"]) == here
        expected = [ids(FILES[run["raw_file"]][run["row"]]) for run in here]
        sizes = [run["num_tokens"] for run in here]
        texts = [
            tokens[run["token_in_piece"] :][:size]
            for run, tokens, size in zip(here, expected, sizes, strict=True)
        ]
        rest = length - sum(sizes)
        assert row["input_ids"] == [token for text in texts for token in text] + [0] * rest
        segments = [number for number, size in enumerate(sizes, 1) for _ in range(size)]
        assert row["segment_ids"] == segments + [0] * rest
        positions = [position for size in sizes for position in range(size)]
        assert row["position_ids"] == positions + [0] * rest
        assert row["attention_mask"] == [1] * (length - rest) + [0] * rest
        assert sum(sizes) >= packing.get("min_sample_length", 1)
        for run in here:
            first = run["token_in_piece"]
            found.update((run["raw_file"], run["row"], first + i) for i in range(run["num_tokens"]))
    counts = {name.removeprefix("train."): num for name, num in manifest.counts.items()}
    every = sum(len(ids(*texts)) for texts in FILES.values())
    assert counts["num_sequences"] == len(rows)
    assert counts["num_tokens"] == found.total()
    assert counts["num_repeated_tokens"] == found.total() - len(found)
    assert counts["num_dropped_tokens"] == every - len(found)
    documents = {(name, row) for name, texts in FILES.items() for row in range(len(texts))}
    assert counts["num_dropped_documents"] == len(documents - {token[:2] for token in found})
    graph = graph_of(dataset)
    for name in FILES:
        assert verify_sequences(graph.open_sequences(name)) == []
    assert verify_export(stored(folder, manifest), list(parts(dataset).values())) == []


@pytest.mark.parametrize("fields", PACKINGS.values(), ids=PACKINGS)
def test_a_new_file_changes_no_other_files_rows_whatever_the_packing(fields: dict, tmp_path: Path):
    packing = {"sequence_length": 6, **fields}
    names = list(FILES)
    before = declare(
        tmp_path,
        {name: FILES[name] for name in (names[0], names[2])},
        packing=packing,
        exports=["parquet"],
    )
    build(before)
    sequences = {name: graph_of(before).open_sequences(name) for name in (names[0], names[2])}
    kept = {name: content(one.folder) for name, one in sequences.items()}
    num_rows = [one.num_sequences("train") for one in sequences.values()]
    old_rows = rows_of(parts(before)["train"])
    after = declare(tmp_path, {names[1]: FILES[names[1]]}, packing=packing, exports=["parquet"])
    build(after)

    new_rows = rows_of(parts(after)["train"])

    num_new = graph_of(after).open_sequences(names[1]).num_sequences("train")
    assert kept == {name: content(graph_of(after).open_sequences(name).folder) for name in kept}
    assert new_rows[: num_rows[0]] == old_rows[: num_rows[0]]
    assert (
        new_rows[num_rows[0] + num_new :][: num_rows[1]] == old_rows[num_rows[0] :][: num_rows[1]]
    )


def test_tails_of_best_fit_are_packed_best_fit(tmp_path: Path):
    files = {"a.jsonl": ["abc"], "b.jsonl": ["d"], "c.jsonl": ["efghi"], "d.jsonl": ["jk"]}
    packing = {"sequence_length": 8, "strategy": "best_fit"}
    dataset = declare(tmp_path, files, packing=packing, exports=["parquet"])
    build(dataset)

    rows = rows_of(parts(dataset)["train"])

    assert rows == [ids("d", "efghi"), [*ids("abc", "jk"), EOS]]

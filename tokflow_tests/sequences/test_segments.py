"""Sequences of files: their segments, their tails, and the turns of chats in them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tokflow.audit.verify import verify_dataset
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.sequences.packing import PackingConfig, Segments, pack_spans, pack_tails
from tokflow.sequences.segments import NO_MASK, FileSequences, SpanMask, fill_sequences
from tokflow.tokens import TokenSource
from tokflow_tests.chats import chat, chat_dataset
from tokflow_tests.outputs import content, int64, parts, rows_of
from tokflow_tests.sequences.test_packing_properties import whole_spans
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


def mask_of(*values: int) -> TokenSource:
    return TokenSource((np.array(values, dtype=np.uint8),))


@pytest.mark.parametrize(
    ("values", "overlong", "expected"),
    [
        ((0, 1, 1, 1, 1, 0, 1, 1), "split", (1, 0)),  # [0 1 1 | 1 1 0 | 1 1]
        ((0, 1, 1, 1, 1, 0, 1, 1), "truncate", (1, 1)),
        ((0, 1, 1, 1, 1, 0, 1, 1), "drop", (0, 2)),
        ((0, 1, 1, 0, 1, 1, 0, 1), "split", (0, 0)),
        ((1, 1, 1, 1, 1, 1, 1, 1), "split", (2, 0)),  # one turn, cut twice
        ((NO_MASK,) * 8, "split", (0, 0)),  # no chat
    ],
)
def test_turns_are_counted_where_rows_cut_them_and_where_they_are_left_out(
    values: tuple[int, ...], overlong: Any, expected: tuple[int, int]
):
    config = PackingConfig(strategy="one_document", sequence_length=3, overlong=overlong)
    mask = SpanMask(mask_of(*values), int64(0))

    found = mask.turn_counts(whole_spans(int64(8)), pack_spans(int64(8), config).segments)

    assert found == {"num_cut_turns": expected[0], "num_dropped_turns": expected[1]}


def test_neighbours_of_a_document_are_no_turn_of_it():
    mask = SpanMask(mask_of(1, 1, 1, 1), int64(0, 2))  # two documents, all of both supervised
    config = PackingConfig(strategy="one_document", sequence_length=2)

    whole = whole_spans(int64(2, 2))
    packed = pack_spans(int64(2, 2), config).segments

    assert mask.turn_counts(whole, packed)["num_cut_turns"] == 0
    first = packed.chosen(packed.span == 0)
    assert mask.turn_counts(whole, first)["num_dropped_turns"] == 1


def test_segments_are_counted_alike_however_many_are_read_at_once(monkeypatch: pytest.MonkeyPatch):
    values = np.random.default_rng(0).integers(0, 2, 200)
    mask = SpanMask(mask_of(*values), np.arange(0, 200, 5))
    whole = whole_spans(np.full(40, 5))
    nothing = whole.chosen(slice(0, 0))
    expected = mask.num_supervised(whole).tolist(), mask.turn_counts(whole, nothing)

    monkeypatch.setattr("tokflow.sequences.segments.TOKENS_AT_ONCE", 12)

    assert expected[0] == values.reshape(40, 5).sum(axis=1).tolist()
    assert (mask.num_supervised(whole).tolist(), mask.turn_counts(whole, nothing)) == expected


def test_a_document_of_which_rows_and_the_tail_were_left_out_is_counted():
    tail = Segments(
        sequence=int64(0, 0),
        span=int64(0, 1),
        token_in_span=int64(4, 4),
        num_tokens=int64(1, 1),
        num_repeated=int64(0, 0),
    )
    config = PackingConfig(sequence_length=4, tail="drop", drop_unsupervised=True)
    mask = SpanMask(mask_of(*[0] * 10), int64(0, 5))

    counts = pack_tails(tail, config, mask.num_supervised, np.array([True, False])).counts

    assert (counts.num_dropped_tokens, counts.num_dropped_documents) == (2, 1)
    assert counts.num_dropped_sequences == 0  # the tail is dropped whatever it holds


CHATS = [
    chat("a long question without an end, it goes on and on", "yes", "well then", "a long " * 9),
    chat("never answered"),
    chat("q", "a"),
]


@pytest.mark.parametrize(
    ("strategy", "shuffle"),
    [
        *((strategy, {}) for strategy in ("concat", "greedy", "pool", "one_document")),
        ("best_fit", {"seed": 1, "documents": "dataset"}),
    ],
)
def test_a_dataset_has_no_row_without_a_supervised_token_and_the_account_closes(
    strategy: str, shuffle: dict[str, Any], tmp_path: Path
):
    packing = {"strategy": strategy, "sequence_length": 8, "label_token": True, "pad_id": 0}
    fields = {"shuffle": shuffle, "exports": ["parquet"]}
    rows, counts = {}, {}
    for drops in (False, True):
        packed = {**packing, "drop_unsupervised": drops}
        dataset = chat_dataset(tmp_path, CHATS * 3, packing=packed, **fields)
        [made] = build_dataset(dataset).of("export")
        [path] = made.output.folder.glob("train-*.parquet")
        rows[drops] = pq.read_table(path).select(["input_ids", "loss_mask"]).to_pylist()
        named = made.manifest.counts.items()
        counts[drops] = {name.removeprefix("train."): num for name, num in named}
        assert [of.problems for of in verify_dataset(dataset) if of.problems] == []

    bare = [row for row in rows[False] if not any(row["loss_mask"])]
    assert rows[True] == [row for row in rows[False] if any(row["loss_mask"])]
    assert counts[False]["num_unsupervised_sequences"] == len(bare) > 0
    assert counts[True]["num_unsupervised_sequences"] == 0
    assert counts[True]["num_dropped_sequences"] == len(bare)
    assert "num_dropped_turns" in counts[False]
    assert counts[True]["num_cut_turns"] == counts[False]["num_cut_turns"] > 0
    num = counts[True]
    once = num["num_tokens"] - num["num_repeated_tokens"] + num["num_dropped_tokens"]
    assert once == counts[False]["num_tokens"] - counts[False]["num_repeated_tokens"]

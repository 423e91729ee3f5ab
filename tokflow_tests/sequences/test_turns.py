"""Rows without a supervised token, and turns that rows cut or leave out."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tokflow.audit.verify.verification import verify_dataset
from tokflow.pipeline.run import build_dataset
from tokflow.sequences.packing import PackingConfig, Segments, pack_spans, pack_tails
from tokflow.sequences.segments import NO_MASK, SpanMask
from tokflow.tokens.token_source import TokenSource
from tokflow_tests.chats import chat, chat_dataset
from tokflow_tests.outputs import int64
from tokflow_tests.sequences.test_packing_properties import whole_spans


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

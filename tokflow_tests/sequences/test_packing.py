from typing import Any

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.sequences.packing import (
    PACKERS,
    PackingConfig,
    PackingCounts,
    PackingResult,
    Segments,
    Strategy,
    pack_concat,
    pack_one_document,
    pack_spans,
    pack_tails,
)
from tokflow_tests.outputs import int64

SIDE_BY_SIDE = ("greedy", "first_fit", "best_fit", "pool")


def columns(packed: PackingResult) -> list[list[int]]:
    segments = packed.segments
    return [
        array.tolist()
        for array in (
            segments.sequence,
            segments.span,
            segments.token_in_span,
            segments.num_tokens,
            segments.num_repeated,
        )
    ]


def of_4(**fields: Any) -> PackingConfig:
    return PackingConfig(sequence_length=4, **fields)


def lengths_of_rows(packed: PackingResult) -> list[list[int]]:
    """Return the tokens of each segment, row by row, the open one last."""
    segments = packed.segments
    rows: dict[int, list[int]] = {}
    for row, size in zip(segments.sequence.tolist(), segments.num_tokens.tolist(), strict=True):
        rows.setdefault(row, []).append(size)
    assert list(rows) == list(range(len(rows)))
    return list(rows.values())


@pytest.mark.parametrize(
    ("lengths", "fields", "expected", "num_sequences"),
    [
        (
            (3, 2, 4),
            {},
            [[0, 0, 1, 1, 2], [0, 1, 1, 2, 2], [0, 0, 1, 0, 3], [3, 1, 1, 3, 1], [0] * 5],
            2,
        ),
        (  # each row but the first begins with the end of the one before it
            (3, 2, 4),
            {"overlap": 1},
            [[0, 0, 1, 1, 2], [0, 1, 1, 2, 2], [0, 0, 0, 0, 1], [3, 1, 2, 2, 3], [0, 0, 1, 0, 1]],
            2,
        ),
        ((9,), {"label_token": True}, [[0, 1], [0, 0], [0, 4], [5, 5], [0, 1]], 2),
    ],
    ids=["end to end", "overlap", "a row of labels has one token more"],
)
def test_concat_cuts_the_pieces_into_rows(
    lengths: tuple[int, ...], fields: dict[str, Any], expected: list[list[int]], num_sequences: int
):
    packed = pack_concat(int64(*lengths), of_4(**fields))

    assert columns(packed) == expected
    assert packed.num_sequences == num_sequences


def test_one_document_lets_each_piece_begin_a_row():
    packed = pack_one_document(int64(5, 2), of_4())

    assert columns(packed) == [[0, 1, 2], [0, 0, 1], [0, 4, 0], [4, 1, 2], [0, 0, 0]]
    assert packed.num_sequences == 3


def test_a_cut_document_goes_on_with_the_overlap():
    packed = pack_one_document(int64(5, 2), of_4(overlap=2))

    assert columns(packed) == [[0, 1, 2], [0, 0, 1], [0, 2, 0], [4, 3, 2], [0, 2, 0]]


def test_pieces_that_fill_rows_exactly_leave_no_tail():
    packed = pack_concat(int64(4, 2, 2), of_4())

    assert columns(packed)[:4] == [[0, 1, 1], [0, 1, 2], [0, 0, 0], [4, 2, 2]]
    assert packed.num_sequences == 2


def test_greedy_begins_a_row_where_a_piece_does_not_fit_into_the_last():
    packed = pack_spans(int64(5, 2, 2, 1), of_4(strategy="greedy"))

    assert columns(packed)[:4] == [
        [0, 1, 1, 2, 2],
        [0, 0, 1, 2, 3],
        [0, 4, 0, 0, 0],
        [4, 1, 2, 2, 1],
    ]
    assert packed.num_sequences == 2


@pytest.mark.parametrize(
    ("lengths", "config", "rows", "spans", "num_sequences"),
    [
        ((3, 2, 1, 2, 1), of_4(strategy="first_fit"), [[3, 1], [2, 2], [1]], [0, 2, 1, 3, 4], 2),
        (
            (1, 7, 2, 6, 3, 1),
            PackingConfig(strategy="best_fit", sequence_length=10),
            [[1, 2, 6, 1], [7, 3]],
            [0, 2, 3, 5, 1, 4],
            2,
        ),
        ((1, 3, 3), of_4(strategy="best_fit"), [[1, 3], [3]], [0, 2, 1], 1),
        (
            (3, 2, 1, 2, 1),
            of_4(strategy="pool", pool_size=2),
            [[3], [2, 2], [1, 1]],
            [0, 1, 3, 2, 4],
            2,
        ),
    ],
    ids=[
        "first_fit takes the first row with room",
        "best_fit takes the row in which the least room is left",
        "the least filled row is left open and comes last",
        "a pool is packed with what the pool before left open",
    ],
)
def test_each_strategy_chooses_a_row_in_its_own_way(
    lengths: tuple[int, ...],
    config: PackingConfig,
    rows: list[list[int]],
    spans: list[int],
    num_sequences: int,
):
    packed = pack_spans(int64(*lengths), config)

    assert lengths_of_rows(packed) == rows
    assert packed.segments.span.tolist() == spans
    assert packed.num_sequences == num_sequences


@pytest.mark.parametrize("strategy", PACKERS)
def test_a_piece_of_no_tokens_is_in_no_segment(strategy: Strategy):
    config = PackingConfig(strategy=strategy, sequence_length=2)

    packed = pack_spans(int64(0, 2, 0, 0, 2, 0), config)

    assert columns(packed)[:4] == [[0, 1], [1, 4], [0, 0], [2, 2]]
    assert packed.num_sequences == 2


@pytest.mark.parametrize("num_tokens", [(), (0,), (0, 0)], ids=str)
@pytest.mark.parametrize("strategy", PACKERS)
def test_no_tokens_make_no_row(strategy: Strategy, num_tokens: tuple[int, ...]):
    packed = pack_spans(int64(*num_tokens), of_4(strategy=strategy))

    assert columns(packed) == [[], [], [], [], []]
    assert packed.num_sequences == 0


@pytest.mark.parametrize("strategy", PACKERS)
def test_truncate_keeps_one_row_of_a_longer_document(strategy: Strategy):
    packed = pack_spans(int64(9, 2), of_4(strategy=strategy, overlong="truncate"))

    assert lengths_of_rows(packed) == [[4], [2]]
    assert packed.counts == PackingCounts(num_truncated_documents=1, num_dropped_tokens=5)


@pytest.mark.parametrize("strategy", PACKERS)
def test_truncated_on_the_left_a_longer_document_keeps_its_last_tokens(strategy: Strategy):
    config = of_4(strategy=strategy, overlong="truncate", truncation_side="left")

    packed = pack_spans(int64(9, 2), config)

    assert columns(packed) == [[0, 1], [0, 1], [5, 0], [4, 2], [0, 0]]
    assert packed.counts == PackingCounts(num_truncated_documents=1, num_dropped_tokens=5)


def test_what_is_kept_of_a_truncated_document_may_be_cut_by_concat_and_counts_in_both():
    packed = pack_spans(int64(3, 9), of_4(strategy="concat", overlong="truncate"))

    assert lengths_of_rows(packed) == [[3, 1], [3]]
    assert packed.counts == PackingCounts(
        num_cut_documents=1, num_truncated_documents=1, num_dropped_tokens=5
    )


def test_the_row_a_label_stands_in_counts_for_what_is_too_long():
    config = of_4(strategy="one_document", overlong="drop", label_token=True)

    packed = pack_spans(int64(5, 6), config)

    assert lengths_of_rows(packed) == [[5]]
    assert packed.counts == PackingCounts(num_dropped_documents=1, num_dropped_tokens=6)


def test_a_row_shorter_than_the_least_is_left_out_and_counted():
    config = of_4(strategy="one_document", min_sample_length=2)

    packed = pack_spans(int64(1, 3, 5, 6), config)

    assert lengths_of_rows(packed) == [[3], [4], [4], [2]]
    assert packed.segments.span.tolist() == [1, 2, 3, 3]
    assert packed.counts == PackingCounts(
        num_cut_documents=2, num_dropped_documents=1, num_dropped_tokens=2
    )


def test_the_row_a_file_leaves_open_is_not_too_short_yet():
    packed = pack_spans(int64(4, 1), of_4(strategy="greedy", min_sample_length=2))

    assert lengths_of_rows(packed) == [[4], [1]]
    assert packed.num_sequences == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"sequence_length": 0},
            "packing.sequence_length: expected 1 to 16,777,216, a usual length is 1024 "
            "or 2048, found 0; raise it",
        ),
        (
            {"sequence_length": 4, "overlap": 4},
            "packing.overlap: expected 0 to 3, less than sequence_length, found 4; "
            "lower it, or raise sequence_length",
        ),
        (
            {"overlap": -1},
            "packing.overlap: expected 0 or more, found -1; raise it",
        ),
        (
            {"overlap": 1, "strategy": "greedy", "overlong": "drop"},
            "packing.overlap: expected 0, found 1; "
            "greedy continues no sequence with overlong: drop; leave it out",
        ),
        (
            {"min_sample_length": 1025},
            "packing.min_sample_length: expected 1 to 1,024, the tokens of a sequence, found 1025; "
            "no sequence is longer",
        ),
        (
            {"pool_size": 0},
            "packing.pool_size: expected 1 or more, a usual size is 10000, found 0; raise it",
        ),
        (
            {"pad_id": 2**31},
            "packing.pad_id: expected 0 to 2,147,483,647, an id that the model knows or ignores, "
            "stored as int32, found 2147483648; lower it, or leave it out",
        ),
        (
            {"pad_id": -1},
            "packing.pad_id: expected 0 to 2,147,483,647, an id that the model knows or ignores, "
            "stored as int32, found -1; raise it, or leave it out",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as raised:
        PackingConfig(**fields)

    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("tail", "rows", "num_dropped"), [("pad", [[3, 1], [1, 1]], 0), ("drop", [[3, 1]], 2)]
)
def test_the_tails_of_all_files_fill_rows_together_and_what_is_left_is_padded_or_dropped(
    tail: Any, rows: list[list[int]], num_dropped: int
):
    none = int64(0, 0, 0)
    tails = Segments(
        sequence=none,
        span=int64(0, 1, 2),
        token_in_span=none,
        num_tokens=int64(3, 2, 1),
        num_repeated=none,
    )

    packed = pack_tails(tails, of_4(tail=tail))

    assert lengths_of_rows(packed) == rows
    assert packed.num_sequences == len(rows)
    assert packed.counts.num_dropped_tokens == num_dropped


Token = tuple[int, int, int]
"""Of which file, of which piece, which token."""


@pytest.mark.parametrize("strategy", SIDE_BY_SIDE)
def test_blocks_of_documents_are_packed_as_one(strategy: Strategy, monkeypatch: pytest.MonkeyPatch):
    sizes = np.random.default_rng(0).integers(1, 30, 500)
    config = PackingConfig(strategy=strategy, sequence_length=32)
    whole = columns(pack_spans(sizes, config))

    monkeypatch.setattr("tokflow.sequences.bins.DOCUMENTS_AT_ONCE", 7)

    assert columns(pack_spans(sizes, config)) == whole


def test_more_than_65_536_rows_are_in_the_order_of_their_first_documents():
    sizes = np.random.default_rng(0).integers(1, 10, 200_000)

    packed = pack_spans(sizes, PackingConfig(strategy="best_fit", sequence_length=9))

    sequence, piece = packed.segments.sequence, packed.segments.span
    is_first = np.diff(sequence, prepend=-1) != 0
    assert packed.num_sequences > 2**16
    assert (np.diff(sequence) >= 0).all()
    assert (np.diff(piece[is_first])[:-1] > 0).all()
    assert (np.diff(piece)[~is_first[1:]] > 0).all()
    assert sorted(piece.tolist()) == list(range(200_000))

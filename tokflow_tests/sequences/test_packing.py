from typing import Any

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.sequences.packing import (
    PackingConfig,
    PackingResult,
    Strategy,
    pack_spans,
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
    ("lengths", "config", "rows", "spans", "num_sequences"),
    [
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

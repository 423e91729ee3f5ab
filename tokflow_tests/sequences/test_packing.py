from typing import Any

import numpy as np
import pytest

from tokflow.sequences.packing import PackingConfig, PackingResult, Strategy, pack_spans
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


def lengths_of_rows(packed: PackingResult) -> list[list[int]]:
    """Return the tokens of each segment, row by row, the open one last."""
    segments = packed.segments
    rows: dict[int, list[int]] = {}
    for row, size in zip(segments.sequence.tolist(), segments.num_tokens.tolist(), strict=True):
        rows.setdefault(row, []).append(size)
    assert list(rows) == list(range(len(rows)))
    return list(rows.values())


CHOICES: dict[str, tuple[tuple[int, ...], dict[str, Any], list[list[int]], list[int], int]] = {
    "best_fit takes the row in which the least room is left": (
        *((1, 7, 2, 6, 3, 1), {"strategy": "best_fit", "sequence_length": 10}),
        *([[1, 2, 6, 1], [7, 3]], [0, 2, 3, 5, 1, 4], 2),
    ),
    "the least filled row is left open and comes last": (
        *((1, 3, 3), {"strategy": "best_fit", "sequence_length": 4}),
        *([[1, 3], [3]], [0, 2, 1], 1),
    ),
    "a pool is packed with what the pool before left open": (
        *((3, 2, 1, 2, 1), {"strategy": "pool", "pool_size": 2, "sequence_length": 4}),
        *([[3], [2, 2], [1, 1]], [0, 1, 3, 2, 4], 2),
    ),
}
"""Lengths, the packing, the lengths in each row, their documents, and the rows that are done."""


@pytest.mark.parametrize("choice", CHOICES)
def test_each_strategy_chooses_a_row_in_its_own_way(choice: str):
    lengths, config, rows, spans, num_sequences = CHOICES[choice]

    packed = pack_spans(int64(*lengths), PackingConfig(**config))

    assert lengths_of_rows(packed) == rows
    assert packed.segments.span.tolist() == spans
    assert packed.num_sequences == num_sequences


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

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokflow.errors import ConfigError
from tokflow.packing import PACKERS, Packed, PackingConfig, pack_concat, pack_one_document
from tokflow_tests.making import int64


def columns(packed: Packed) -> list[list[int]]:
    segments = packed.segments
    return [
        array.tolist()
        for array in (
            segments.sequence,
            segments.piece,
            segments.token_in_piece,
            segments.num_tokens,
        )
    ]


def test_concat_cuts_the_pieces_end_to_end_into_rows():
    packed = pack_concat(int64(3, 2, 4), sequence_length=4)

    assert columns(packed) == [[0, 0, 1, 1, 2], [0, 1, 1, 2, 2], [0, 0, 1, 0, 3], [3, 1, 1, 3, 1]]
    assert packed.num_sequences == 2


def test_one_document_lets_each_piece_begin_a_row():
    packed = pack_one_document(int64(5, 2), sequence_length=4)

    assert columns(packed) == [[0, 1, 2], [0, 0, 1], [0, 4, 0], [4, 1, 2]]
    assert packed.num_sequences == 3


def test_a_piece_longer_than_several_rows_goes_on_in_them():
    packed = pack_concat(int64(1, 9), sequence_length=4)

    assert columns(packed) == [[0, 0, 1, 2], [0, 1, 1, 1], [0, 0, 3, 7], [1, 3, 4, 2]]


def test_pieces_that_fill_rows_exactly_leave_no_tail():
    packed = pack_concat(int64(4, 2, 2), sequence_length=4)

    assert columns(packed) == [[0, 1, 1], [0, 1, 2], [0, 0, 0], [4, 2, 2]]
    assert packed.num_sequences == 2


@pytest.mark.parametrize("strategy", PACKERS)
def test_a_piece_of_no_tokens_is_in_no_segment(strategy):
    packed = PACKERS[strategy](int64(0, 2, 0, 0, 2, 0), sequence_length=2)

    assert columns(packed) == [[0, 1], [1, 4], [0, 0], [2, 2]]
    assert packed.num_sequences == 2


@pytest.mark.parametrize("num_tokens", [(), (0,), (0, 0)], ids=str)
@pytest.mark.parametrize("strategy", PACKERS)
def test_no_tokens_make_no_row(strategy, num_tokens: tuple[int, ...]):
    packed = PACKERS[strategy](int64(*num_tokens), sequence_length=3)

    assert columns(packed) == [[], [], [], []]
    assert packed.num_sequences == 0


def test_a_row_must_hold_a_token():
    with pytest.raises(ConfigError) as raised:
        PackingConfig(sequence_length=0)

    assert str(raised.value) == (
        "packing.sequence_length: expected 1 to 16,777,216, found 0; a usual length is 1024 or 2048"
    )


pieces = st.lists(st.integers(0, 12), max_size=20).map(lambda values: int64(*values))
lengths = st.integers(1, 7)


@pytest.mark.parametrize("strategy", PACKERS)
@given(num_tokens=pieces, sequence_length=lengths)
def test_every_token_is_in_one_segment_and_in_order(strategy, num_tokens, sequence_length):
    segments = PACKERS[strategy](num_tokens, sequence_length=sequence_length).segments

    found = [
        (piece, first + ordinal)
        for piece, first, size in zip(
            segments.piece.tolist(),
            segments.token_in_piece.tolist(),
            segments.num_tokens.tolist(),
            strict=True,
        )
        for ordinal in range(size)
    ]
    assert found == [
        (piece, token) for piece, size in enumerate(num_tokens.tolist()) for token in range(size)
    ]


@pytest.mark.parametrize("strategy", PACKERS)
@given(num_tokens=pieces, sequence_length=lengths)
def test_rows_are_numbered_without_a_gap_and_never_too_long(strategy, num_tokens, sequence_length):
    packed = PACKERS[strategy](num_tokens, sequence_length=sequence_length)

    segments = packed.segments
    fill = np.bincount(segments.sequence, weights=segments.num_tokens)
    assert (segments.num_tokens > 0).all()
    assert (np.diff(segments.sequence) >= 0).all()
    assert ((fill >= 1) & (fill <= sequence_length)).all()
    assert len(fill) - packed.num_sequences in (0, 1)


@given(num_tokens=pieces, sequence_length=lengths)
def test_rows_of_concat_are_full_and_the_tail_is_not(num_tokens, sequence_length):
    packed = pack_concat(num_tokens, sequence_length=sequence_length)

    segments = packed.segments
    fill = np.bincount(segments.sequence, weights=segments.num_tokens)
    assert (fill[: packed.num_sequences] == sequence_length).all()
    assert (fill[packed.num_sequences :] < sequence_length).all()


@given(num_tokens=pieces, sequence_length=lengths)
def test_a_row_of_one_document_holds_one_piece_from_its_start_or_going_on(
    num_tokens, sequence_length
):
    packed = pack_one_document(num_tokens, sequence_length=sequence_length)

    segments = packed.segments
    assert segments.sequence.tolist() == list(range(packed.num_sequences))
    assert (segments.token_in_piece % sequence_length == 0).all()

import numpy as np
import pytest

from tokflow.exports.columns import (
    files_of,
    make_columns,
    read_columns,
    schema_of,
    segment_lengths,
)
from tokflow.sequences import Sequences

PAD = 9


def rows(*, learnt: bool = True) -> Sequences:
    """Documents of 3 and 1 tokens, of 4, of 2 and no more; all tokens learnt or every second."""
    segment_ids = np.array([[1, 1, 1, 2], [1, 1, 1, 1], [1, 1, 0, 0]], dtype=np.int32)
    loss_mask = segment_ids != 0
    if not learnt:
        loss_mask[:, ::2] = False
    return Sequences(
        np.array([[5, 6, 7, 5], [6, 7, 8, 5], [5, 6, PAD, PAD]], dtype=np.uint16),
        segment_ids,
        np.array([[0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 0, 0]], dtype=np.int32),
        loss_mask,
    )


def test_each_column_says_what_trainers_expect_of_its_name():
    schema = schema_of(["input_ids", "attention_mask", "labels", "seq_lengths"])

    table = make_columns(rows(learnt=False), schema)

    assert table.to_pydict() == {
        "input_ids": [[5, 6, 7, 5], [6, 7, 8, 5], [5, 6, PAD, PAD]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]],
        "labels": [[-100, 6, -100, 5], [-100, 7, -100, 5], [-100, 6, -100, -100]],
        "seq_lengths": [[3, 1], [4], [2]],
    }


def test_without_padding_a_row_ends_at_its_last_token():
    schema = schema_of(["input_ids", "position_ids", "seq_lengths"])

    table = make_columns(rows(), schema, padding=False)

    assert table.to_pydict() == {
        "input_ids": [[5, 6, 7, 5], [6, 7, 8, 5], [5, 6]],
        "position_ids": [[0, 1, 2, 0], [0, 1, 2, 3], [0, 1]],
        "seq_lengths": [[3, 1], [4], [2]],
    }


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize(
    ("learnt", "names"),
    [
        (False, ["input_ids", "segment_ids", "position_ids", "loss_mask"]),
        (False, ["input_ids", "segment_ids", "labels"]),
        (False, ["input_ids", "seq_lengths", "labels"]),
        (True, ["input_ids", "segment_ids"]),
        (True, ["input_ids", "attention_mask", "seq_lengths"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_fields_are_read_again_from_whatever_columns_tell_of_them(
    names: list[str], learnt: bool, padding: bool
):
    made = rows(learnt=learnt)
    table = make_columns(made, schema_of(names), padding=padding)

    read = read_columns([table[:2], table[2:]], sequence_length=4, dtype="<u2", pad_id=PAD)

    assert list(read) == ["token_ids", "segment_ids", "position_ids", "loss_mask"]
    for name, values in read.items():
        assert values.dtype == getattr(made, name).dtype, name
        np.testing.assert_array_equal(values, getattr(made, name))


def test_a_field_that_no_column_tells_of_is_left_out():
    table = make_columns(rows(), schema_of(["input_ids"]))

    read = read_columns([table], sequence_length=4, dtype="<u2", pad_id=PAD)

    assert list(read) == ["token_ids"]


def test_no_table_is_a_part_of_no_rows():
    read = read_columns([], sequence_length=4, dtype="<u2", pad_id=PAD)

    assert {name: values.shape for name, values in read.items()} == dict.fromkeys(
        ["token_ids", "segment_ids", "position_ids", "loss_mask"], (0, 4)
    )


def test_segment_lengths_of_no_rows_are_none():
    lengths, num_segments = segment_lengths(rows()[:0])

    assert (lengths.tolist(), num_segments.tolist()) == ([], [])


def test_a_batch_is_cut_where_a_file_ends_and_nowhere_else():
    made = rows()
    batches = [made[:2], made, made[:2], made[:1]]

    files = [(number, [len(some) for some in pieces]) for number, pieces in files_of(batches, 3)]

    assert files == [(0, [2, 1]), (1, [2, 1]), (2, [1, 1])]

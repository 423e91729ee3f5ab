from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tokflow.errors import ConfigError
from tokflow.exports import Export
from tokflow.exports.batching import cut
from tokflow.exports.columns import (
    check_columns,
    layout_of_columns,
    lists_of,
    make_columns,
    read_columns,
    schema_of,
)
from tokflow.sequences.segments import Sequences
from tokflow_tests.outputs import make_manifest, make_recipe

PAD = 9


def rows(*, all_loss: bool = True) -> Sequences:
    """Documents of 2 tokens and no more, of 3 and 1, of 4; all are loss tokens, or every second."""
    segment_ids = np.array([[1, 1, 0, 0], [1, 1, 1, 2], [1, 1, 1, 1]], dtype=np.int32)
    loss_mask = segment_ids != 0
    if not all_loss:
        loss_mask[:, ::2] = False
    return Sequences(
        np.array([[5, 6, PAD, PAD], [5, 6, 7, 5], [6, 7, 8, 5]], dtype=np.uint16),
        segment_ids,
        np.array([[0, 1, 0, 0], [0, 1, 2, 0], [0, 1, 2, 3]], dtype=np.int32),
        loss_mask,
    )


def test_each_column_says_what_trainers_expect_of_its_name():
    schema = schema_of(["input_ids", "attention_mask", "labels", "seq_lengths"])

    table = make_columns(rows(all_loss=False), schema)

    assert table.to_pydict() == {
        "input_ids": [[5, 6, PAD, PAD], [5, 6, 7, 5], [6, 7, 8, 5]],
        "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]],
        "labels": [[-100, 6, -100, -100], [-100, 6, -100, 5], [-100, 7, -100, 5]],
        "seq_lengths": [[2], [3, 1], [4]],
    }


def test_without_padding_a_row_ends_at_its_last_token():
    schema = schema_of(["input_ids", "position_ids", "seq_lengths"])

    table = make_columns(rows(), schema, padding=False)

    assert table.to_pydict() == {
        "input_ids": [[5, 6], [5, 6, 7, 5], [6, 7, 8, 5]],
        "position_ids": [[0, 1], [0, 1, 2, 0], [0, 1, 2, 3]],
        "seq_lengths": [[2], [3, 1], [4]],
    }


def export_of(columns: list[str]) -> Export:
    details = {
        "sequence_length": 4,
        "dtype": "<u2",
        "pad_id": PAD,
        "keeps": layout_of_columns(columns).keeps,
    }
    recipe = make_recipe(stage="export")
    return Export(Path(), make_manifest(recipe=recipe, partition=None, details=details))


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize(
    ("all_loss", "columns"),
    [
        (False, ["segment_ids", "position_ids", "loss_mask"]),
        (False, ["segment_ids", "labels"]),
        (False, ["seq_lengths", "labels"]),
        (True, ["segment_ids"]),
        (True, ["attention_mask", "seq_lengths"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_fields_are_read_again_from_whatever_columns_tell_of_them(
    columns: list[str], all_loss: bool, padding: bool
):
    made = rows(all_loss=all_loss)
    table = make_columns(made, schema_of(["input_ids", *columns]), padding=padding)

    read = read_columns(pa.concat_tables([table[:2], table[2:]]), export_of(columns))

    assert list(read) == ["token_ids", "segment_ids", "position_ids", "loss_mask"]
    for name, values in read.items():
        assert values.dtype == getattr(made, name).dtype, name
        np.testing.assert_array_equal(values, getattr(made, name))


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        ([], ["token_ids"]),
        (["position_ids"], ["token_ids", "position_ids"]),
        (["attention_mask"], ["token_ids", "loss_mask"]),
        (["labels"], ["token_ids", "loss_mask"]),
    ],
)
def test_a_field_that_no_column_tells_of_is_left_out(columns: list[str], fields: list[str]):
    table = make_columns(rows(), schema_of(["input_ids", *columns]))

    read = read_columns(table, export_of(columns))

    assert list(read) == fields


def test_segment_lengths_of_no_rows_are_none():
    lengths, num_segments = lists_of(rows()[:0], "seq_lengths")

    assert (lengths.tolist(), num_segments.tolist()) == ([], [])


def test_a_batch_is_cut_where_a_file_ends_and_nowhere_else():
    made = rows()
    batches = [made[:2], made, made[:2], made[:1]]

    files = [[len(some) for some in taken] for taken in cut(iter(batches), [3, 3, 2])]

    assert files == [[2, 1], [2, 1], [1, 1]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["labels", "labels"], "expected each column once, found labels, labels; name it once"),
        (
            ["seq_lengths"],
            "expected lengths that add up to their row, as TRL's collator has it, found rows with "
            "padding; add `padding: false`",
        ),
    ],
)
def test_columns_that_cannot_be_are_refused(columns: list[str], message: str):
    with pytest.raises(ConfigError) as raised:
        check_columns(columns, padding=True)

    assert str(raised.value) == f"columns: {message}"

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.tables import parquet_options, read_part

SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("is_cut", pa.bool_(), nullable=False),
    ]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table in row groups of 2: train has the sequences 0 to 4, validation 0 to 2."""
    table = pa.table(
        {
            "part": [*["train"] * 3, "validation", "train", *["validation"] * 2, "train"],
            "sequence": [0, 1, 2, 0, 3, 1, 2, 4],
            "is_cut": [True, False, False, True, True, False, False, True],
        },
        schema=SCHEMA,
    )
    path = tmp_path / "table.parquet"
    pq.write_table(table, path, row_group_size=2, **parquet_options(SCHEMA))
    return path


def test_the_rows_of_one_part_come_in_order(path: Path):
    columns = read_part(path, "train", ["sequence", "is_cut"])

    assert columns["sequence"].tolist() == [0, 1, 2, 3, 4]
    assert columns["is_cut"].tolist() == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("sequences", "is_cut"),
    [((0, 2), [True, False]), ((2, 4), [False, True]), ((4, 5), [True]), ((5, 9), [])],
)
def test_sequences_are_from_the_first_to_before_the_second(
    sequences: tuple[int, int], is_cut: list[bool], path: Path
):
    columns = read_part(path, "train", ["is_cut"], sequences=sequences)

    assert list(columns) == ["is_cut"]
    assert columns["is_cut"].tolist() == is_cut


def test_a_part_that_is_not_there_has_empty_columns_of_the_right_type(path: Path):
    columns = read_part(path, "test", ["sequence", "is_cut"])

    assert [(len(values), values.dtype) for values in columns.values()] == [
        (0, np.dtype(np.int64)),
        (0, np.dtype(bool)),
    ]


def test_whole_numbers_are_kept_as_differences(path: Path):
    group = pq.read_metadata(path).row_group(0)

    encodings = {
        group.column(number).path_in_schema: group.column(number).encodings for number in range(3)
    }

    assert "DELTA_BINARY_PACKED" in encodings["sequence"]
    assert not any("DICTIONARY" in encoding for encoding in encodings["sequence"])
    assert any("DICTIONARY" in encoding for encoding in encodings["part"])

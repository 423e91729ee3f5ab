from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.store import tables
from tokflow.store.manifest import checksum
from tokflow.store.tables import (
    TableWriter,
    make_table,
    parquet_options,
    read_part,
    read_parts,
    repeated,
    to_arrow,
    to_numpy,
)

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


def test_sequences_are_from_the_first_to_before_the_second(path: Path):
    for sequences, is_cut in {
        (0, 2): [True, False],
        (2, 5): [False, True, True],
        (5, 9): [],
    }.items():
        columns = read_part(path, "train", ["is_cut"], sequences=sequences)

        assert list(columns) == ["is_cut"]
        assert columns["is_cut"].tolist() == is_cut


@pytest.mark.parametrize("sequences", [None, (1, 3)])
def test_parts_read_together_are_those_read_one_by_one(
    sequences: tuple[int, int] | None, path: Path
):
    names, columns = ["validation", "test", "train"], ["sequence", "is_cut"]

    together = read_parts(path, names, columns, sequences=sequences)

    for name in names:
        alone = read_part(path, name, columns, sequences=sequences)
        assert list(together[name]) == columns
        for column in columns:
            assert together[name][column].tolist() == alone[column].tolist()
            assert together[name][column].dtype == alone[column].dtype


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


def numbers(*sizes: int) -> list[pa.Table]:
    """Return tables of so many rows, numbered on."""
    ends = np.cumsum(sizes).tolist()
    return [
        pa.table(
            {
                "part": ["train"] * size,
                "sequence": range(end - size, end),
                "is_cut": [False] * size,
            },
            schema=SCHEMA,
        )
        for size, end in zip(sizes, ends, strict=True)
    ]


@pytest.mark.parametrize("sizes", [[1] * 11, [0, 5, 6, 0], [9, 2]])
def test_row_groups_do_not_depend_on_how_the_rows_come(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "TABLES_WAITING", 2)
    path = tmp_path / "table.parquet"

    with TableWriter(path, SCHEMA, rows_per_group=4) as writer:
        for table in numbers(*sizes):
            writer.add(table)

    metadata = pq.read_metadata(path)
    assert [metadata.row_group(number).num_rows for number in range(3)] == [4, 4, 3]
    assert writer.entry() == checksum(path)
    assert pq.read_table(path)["sequence"].to_pylist() == [*range(11)]


def test_a_group_that_is_ended_is_followed_by_a_full_one(tmp_path: Path):
    path = tmp_path / "table.parquet"

    with TableWriter(path, SCHEMA, rows_per_group=4) as writer:
        first, second = numbers(3, 5)
        writer.add(first)
        writer.end_group()
        writer.end_group()
        writer.add(second)

    metadata = pq.read_metadata(path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [3, 4, 1]


def test_a_table_without_rows_can_be_read(tmp_path: Path):
    path = tmp_path / "table.parquet"

    with TableWriter(path, SCHEMA, rows_per_group=4):
        pass

    assert read_part(path, "train", ["sequence"])["sequence"].tolist() == []


@pytest.mark.parametrize("dtype", [np.int64, bool])
def test_slices_and_chunks_of_a_column_are_read_where_they_lie(dtype: type):
    values = (np.arange(40) % 3).astype(dtype)
    column = to_arrow(values)

    chunks = pa.chunked_array([column.slice(3, 5), column.slice(20), column.slice(0, 0)])

    assert to_numpy(chunks).tolist() == [*values[3:8].tolist(), *values[20:].tolist()]


def test_a_column_that_arrow_allocated_no_buffer_for_is_empty():
    column = pa.chunked_array([], type=pa.int64())

    assert to_numpy(column).dtype == np.int64
    assert len(to_numpy(column)) == 0


def test_a_repeated_text_stands_in_every_row():
    for text, times in (("", 5), ("größe", 0), ("größe", 5)):
        array = repeated(text, times)

        array.validate(full=True)
        assert array.to_pylist() == [text] * times


def test_a_table_lacking_a_column_is_an_error():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])

    with pytest.raises(KeyError, match="b"):
        make_table({"a": np.arange(3)}, schema)

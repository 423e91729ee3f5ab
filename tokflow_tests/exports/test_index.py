from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.exports import index
from tokflow.exports.index import INDEX_NAME, INDEX_SCHEMA, read_index, write_index
from tokflow.store.tables import make_table, repeated
from tokflow_tests.outputs import index_of, make_manifest, stored

LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
"""Of the runs of a part, one in each raw file; one position of padding after every fourth."""


def runs_of(part: str) -> Iterator[pa.Table]:
    position = 0
    for number, length in enumerate(LENGTHS):
        names = {"part": repeated(part, 1), "raw_file": repeated(f"{number:02d}.txt", 1)}
        numbers = dict.fromkeys(("row", "char_start", "token_in_piece"), np.zeros(1, np.int64))
        at = {"position": np.array([position]), "num_tokens": np.array([length])}
        yield make_table({**names, **numbers, **at}, INDEX_SCHEMA)
        position += length + (number % 4 == 3)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index of two parts, in row groups of 4, 4 and 3 runs each."""
    monkeypatch.setattr(index, "INDEX_ROWS_PER_GROUP", 4)
    path = tmp_path / INDEX_NAME
    write_index(path, [runs_of("train"), runs_of("validation")])
    return path


def test_many_files_share_a_row_group_and_parts_do_not(path: Path):
    with pq.ParquetFile(path) as file:
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]

    assert [len(group) for group in groups] == [4, 4, 3, 4, 4, 3]
    assert [len(group["part"].unique()) for group in groups] == [1] * 6


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("size", [1, 2, 12, 100])
def test_a_lookup_finds_the_runs_that_touch_its_positions(part: str, size: int, path: Path):
    rows = index_of(path.parents[1], part)
    export = stored(path.parents[1], make_manifest())

    for start in range(sum(LENGTHS) + 5):
        touched = [
            row
            for row in rows
            if row["position"] < start + size and row["position"] + row["num_tokens"] > start
        ]
        assert read_index(export, part, start, start + size) == touched


def test_a_lookup_of_a_token_reads_one_row_group(path: Path, monkeypatch: pytest.MonkeyPatch):
    export, read = stored(path.parents[1], make_manifest()), list[int]()
    of_file = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda file, at: read.append(at) or of_file(file, at)
    )

    for at in (0, 8, 10, 33, 45):
        read_index(export, "validation", at, at + 1)

    assert read == [3, 3, 4, 5, 5]


def test_the_bytes_do_not_depend_on_the_tables_that_the_runs_come_in(path: Path):
    together = path.with_name("together.parquet")
    write_index(together, [[pa.concat_tables(runs_of(part))] for part in ("train", "validation")])

    assert together.read_bytes() == path.read_bytes()

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.exports.formats.parquet import CODECS, parquet_file

SCHEMA = pa.schema(
    {"ids": pa.list_(pa.int32()), "is_token": pa.list_(pa.int8()), "url": pa.string()}
)


@pytest.mark.parametrize("compression", CODECS)
def test_tables_are_read_back_as_they_were_written(
    compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.formats.parquet.PAGE_VALUES", (2, 4))
    columns = {
        "ids": [[2**31 - 1, 0], [], [-100] * 17, [], [1]] + [[n, n] for n in range(400)],
        "is_token": [[1], [0, 1], [], [1] * 9, [-1]] + [[1, 1]] * 400,
        "url": ["é", None, "", None, "b"] + ["c" * 300] * 400,
    }
    table = pa.table(columns, schema=SCHEMA)
    with parquet_file(tmp_path / "a.parquet", SCHEMA, compression) as file:
        for rows in (table[3:], table[:1], table[:0]):
            file.write_table(rows)

    with pq.ParquetFile(tmp_path / "a.parquet") as read:
        groups = [read.read_row_group(number) for number in range(3)]

    assert groups == [table[3:], table[:1], table[:0]]
    assert groups[0].schema == SCHEMA


def test_a_page_ends_behind_the_same_rows_wherever_they_stand(tmp_path: Path):
    rows = [[number] * 1_000 for number in range(600)]
    pages = []
    for name, more in (("a", []), ("b", [[7] * 500])):
        table = pa.table({"ids": [*more, *rows]}, schema=SCHEMA.remove(2).remove(1))
        with parquet_file(tmp_path / name, table.schema, "none") as file:
            file.write_table(table)
        pages.append((tmp_path / name).read_bytes())

    alone, behind = pages
    found = [alone[at : at + 99_000] in behind for at in range(0, len(alone) - 99_000, 99_000)]

    assert sum(found) > len(found) / 2

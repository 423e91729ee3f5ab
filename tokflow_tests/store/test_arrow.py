import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.store import arrow
from tokflow.store.arrow import (
    make_table,
    parquet_source,
    read_table,
    repeated,
    to_arrow,
    to_numpy,
    to_texts,
)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16, np.uint32, np.float64, bool])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1000])
def test_numbers_come_back_from_arrow_as_they_went(dtype, length):
    values = (np.arange(length) * 7 % 3).astype(dtype)

    array = to_arrow(values)

    array.validate(full=True)
    assert array.to_pylist() == values.tolist()
    assert to_numpy(array).dtype == values.dtype
    assert to_numpy(array).tolist() == values.tolist()


@pytest.mark.parametrize("dtype", [np.int64, bool])
def test_a_slice_and_a_chunked_column_are_read_where_they_lie(dtype):
    values = (np.arange(40) % 3).astype(dtype)
    array = to_arrow(values)

    chunked = pa.chunked_array([array.slice(3, 5), array.slice(20), array.slice(0, 0)])

    assert to_numpy(array.slice(3, 5)).tolist() == values[3:8].tolist()
    assert to_numpy(chunked).tolist() == [*values[3:8].tolist(), *values[20:].tolist()]


def test_a_column_that_arrow_allocated_no_buffer_for_is_empty():
    column = pa.chunked_array([], type=pa.int64())

    assert to_numpy(column).dtype == np.int64
    assert len(to_numpy(column)) == 0


def test_texts_are_the_strings_byte_for_byte():
    strings = ["", "a", "é\x00\r\n", "👩‍👩‍👧"]

    texts = to_texts(strings)

    texts.validate(full=True)
    assert texts.to_pylist() == strings
    assert to_texts([]).to_pylist() == []


@pytest.mark.parametrize("text", ["", "a", "größe"])
@pytest.mark.parametrize("times", [0, 1, 5])
def test_a_repeated_text_stands_in_every_row(text, times):
    array = repeated(text, times)

    array.validate(full=True)
    assert array.to_pylist() == [text] * times


def test_a_table_is_written_and_read_without_pandas(tmp_path):
    path = tmp_path / "table.parquet"
    code = f"""
import sys, pathlib
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from tokflow.store.arrow import *
schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())])
pq.write_table(make_table({{"n": np.arange(3), "s": repeated("x", 3)}}, schema), {str(path)!r})
table = read_table(pathlib.Path({str(path)!r}), ["n"])
print(to_numpy(table["n"]).tolist(), "pandas" in sys.modules)
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[0, 1, 2] False\n"
    assert pq.read_table(path).to_pydict() == {"n": [0, 1, 2], "s": ["x", "x", "x"]}


def test_a_table_lacking_a_column_is_an_error():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])

    with pytest.raises(KeyError, match="b"):
        make_table({"a": np.arange(3)}, schema)


def test_a_small_file_is_read_from_memory_and_a_large_one_from_its_path(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1, 3], "b": [2, 4]}), path)
    read = {}
    for limit in (0, 1_000_000):
        monkeypatch.setattr(arrow, "SMALL_BYTES", limit)
        read[type(parquet_source(path))] = read_table(path).to_pydict()

    assert list(read) == [type(path), pa.BufferReader]
    assert list(read.values()) == [{"a": [1, 3], "b": [2, 4]}] * 2


def test_read_table_takes_the_columns_it_is_asked_for(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "t.parquet")

    assert read_table(tmp_path / "t.parquet", ["b"]).to_pydict() == {"b": [2]}
    assert read_table(tmp_path / "t.parquet").to_pydict() == {"a": [1], "b": [2]}

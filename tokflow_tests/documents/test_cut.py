"""Which ranges a raw file has: of about one size, or none where it is read whole."""

import gzip
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, Limit
from tokflow.documents.ranges import RANGE_BYTES, Range, is_cut, ranges_of
from tokflow.errors import ConfigError, RawFileError
from tokflow_tests.documents.test_ranges import find, find_in_ranges
from tokflow_tests.reading import LINES, PLAIN, read_documents, write_records, write_table


def write_large(path: Path) -> None:
    """Write about 100 kB in 1000 records of `text`."""
    records = [{"text": f"{row} " + "é" * 45} for row in range(1000)]
    if path.suffix == ".parquet":
        write_table(path, pa.Table.from_pylist(records), rows=100, compression="none")
    else:
        write_records(path, records, rows=100)


CUT = {"a.jsonl": PLAIN, "a.txt": LINES, "a.parquet": PLAIN, "a.arrow": PLAIN}


@pytest.mark.parametrize("name", CUT)
def test_a_large_file_is_cut_into_ranges_of_about_one_size(name: str, tmp_path: Path):
    path, config = tmp_path / name, CUT[name]
    write_large(path)

    ranges = ranges_of(path, config, range_bytes=30_000)
    found = [find(path, config, within) for within in ranges]

    num_bytes = [sum(len(text.encode()) for _, text, *_ in of.documents) for of in found]
    assert [one.stop for one in ranges[:-1]] == [one.start for one in ranges[1:]]
    assert 4 <= len(ranges) <= 11
    assert max(num_bytes) <= 36_000
    assert min(num_bytes) >= 0.4 * max(num_bytes)
    assert find_in_ranges(path, config, ranges) == find(path, config)
    assert ranges == ranges_of(path, config, range_bytes=30_000)


@pytest.mark.parametrize("name", CUT)
def test_a_file_that_is_no_larger_than_a_range_is_whole(name: str, tmp_path: Path):
    path = tmp_path / name
    write_large(path)
    num_bytes = path.stat().st_size

    assert ranges_of(path, CUT[name]) == ()
    assert ranges_of(path, CUT[name], range_bytes=4 * num_bytes) == ()
    assert ranges_of(path, CUT[name], range_bytes=num_bytes // 2) != ()
    largest = RANGE_BYTES // 4 if path.suffix == ".parquet" else RANGE_BYTES  # it is compressed
    assert not is_cut(path, largest, CUT[name])
    assert is_cut(path, largest + 1, CUT[name])


WHOLE = [
    ("a.jsonl.gz", PLAIN),
    ("a.csv", PLAIN),
    ("a.tsv", PLAIN),
    ("a.csv.zst", PLAIN),
    ("a.jsonl.zst", PLAIN),
    ("a.csv.bz2", PLAIN),
    ("a.txt.xz", LINES),
    ("a.txt", PLAIN),
    ("a.txt", DocumentsConfig(document_per="separator", separator="\n")),
    ("a.jsonl", DocumentsConfig(limit=Limit(documents=10**9))),
    ("a.parquet", DocumentsConfig(limit=Limit(characters=10**12))),
    ("a.bin", PLAIN),
]


@pytest.mark.parametrize(("name", "config"), WHOLE)
def test_what_cannot_be_cut_is_whole(name: str, config: DocumentsConfig, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(random.Random(0).randbytes(1000)))

    assert ranges_of(path, config, range_bytes=10) == ()
    assert not is_cut(path, 10**15, config)
    with pytest.raises((ValueError, ConfigError)):
        read_documents(path, config, within=Range(0, 5))


def test_a_stream_and_one_row_group_are_whole(tmp_path: Path):
    write_large(tmp_path / "a.ipc")
    table = pa.table({"text": ["x" * 1000] * 100})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")

    assert ranges_of(tmp_path / "a.ipc", PLAIN, range_bytes=1000) == ()
    assert ranges_of(tmp_path / "a.parquet", PLAIN, range_bytes=1000) == ()
    with pytest.raises(ValueError, match="found a stream"):
        find(tmp_path / "a.ipc", PLAIN, Range(0, 5))


def test_only_the_columns_that_are_read_count(tmp_path: Path):
    path = tmp_path / "a.parquet"
    texts = pa.array([f"{row} " * 30 for row in range(1000)])
    other = pa.array([f"{row} " * 300 for row in range(1000)])
    table = pa.table({"text": texts, "other": other})
    pq.write_table(table, path, row_group_size=10, use_dictionary=False)

    few = ranges_of(path, PLAIN, range_bytes=40_000)
    many = ranges_of(path, DocumentsConfig(text="other"), range_bytes=40_000)

    assert len(few) < 5
    assert len(many) > 25


@pytest.mark.parametrize("name", CUT)
def test_a_file_that_is_damaged_or_missing_is_an_error_and_not_whole(name: str, tmp_path: Path):
    path = tmp_path / name

    with pytest.raises(OSError, match="No such file"):
        ranges_of(path, CUT[name], range_bytes=10)
    with pytest.raises(RawFileError):
        next(read_documents(path, CUT[name], within=Range(0, 1)))
    if path.suffix in (".parquet", ".arrow"):
        path.write_bytes(b"ARROW1 and no more")
        with pytest.raises(RawFileError, match="expected an undamaged file"):
            ranges_of(path, CUT[name], range_bytes=10)

"""Claims about how much text a file says it holds."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig
from tokflow.documents.ranges import declared_text_bytes
from tokflow.store.zstd import zstd

TEXT = b'{"text": "what is said"}\n' * 1_000
"""25,000 bytes, which compress well."""


def declared(folder: Path, name: str, content: bytes) -> int:
    path = folder / name
    path.write_bytes(content)
    return declared_text_bytes(path, len(content), DocumentsConfig())


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl.gz", gzip.compress(TEXT)), ("a.jsonl.zst", zstd.compress(TEXT))],
    ids=["gz", "zst"],
)
def test_a_compressed_file_says_how_much_it_holds(name: str, content: bytes, tmp_path: Path):
    assert declared(tmp_path, name, content) == len(TEXT)


def test_a_parquet_file_says_it_of_the_columns_that_are_read(tmp_path: Path):
    path = tmp_path / "a.parquet"
    texts = [f"{number:0100}" for number in range(1_000)]
    table = pa.table({"text": texts, "other": [text * 10 for text in texts]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)

    num_bytes = declared_text_bytes(path, path.stat().st_size, DocumentsConfig())

    assert 100_000 <= num_bytes <= 110_000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", gzip.compress(TEXT) + gzip.compress(b"{}")),  # that of the last member
        ("a.jsonl.zst", zstd.compress(b"{}") + zstd.compress(TEXT)),  # that of the first frame
        ("a.jsonl.gz", b"\x1f"),
        ("a.jsonl.zst", b"no frame"),
        ("a.jsonl.bz2", b"says nothing"),
        ("a.parquet", b"PAR1 damaged"),
    ],
)
def test_where_it_says_nothing_or_that_of_a_part_four_times_its_size_is_taken(
    name: str, content: bytes, tmp_path: Path
):
    assert declared(tmp_path, name, content) == 4 * len(content)


def test_a_file_that_is_not_compressed_is_its_text(tmp_path: Path):
    assert declared(tmp_path, "a.jsonl", TEXT) == len(TEXT)

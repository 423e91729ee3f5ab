"""Claims about how much text a file says it holds."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig
from tokflow.documents.ranges import declared_text_bytes

TEXT = b'{"text": "what is said"}\n' * 1_000


def declared(folder: Path, name: str, content: bytes) -> int:
    path = folder / name
    path.write_bytes(content)
    return declared_text_bytes(path, len(content), DocumentsConfig())


def test_a_parquet_file_says_it_of_the_columns_that_are_read(tmp_path: Path):
    path = tmp_path / "a.parquet"
    texts = [f"{number:0100}" for number in range(1_000)]
    table = pa.table({"text": texts, "other": [text * 10 for text in texts]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)

    num_bytes = declared_text_bytes(path, path.stat().st_size, DocumentsConfig())

    assert 100_000 <= num_bytes <= 110_000


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.bz2", "a.parquet"])
def test_else_four_times_the_size_of_a_packed_file_is_taken(name: str, tmp_path: Path):
    assert declared(tmp_path, name, b"PAR1 damaged") == 4 * len(b"PAR1 damaged")


def test_a_file_that_is_not_compressed_is_its_text(tmp_path: Path):
    assert declared(tmp_path, "a.jsonl", TEXT) == len(TEXT)

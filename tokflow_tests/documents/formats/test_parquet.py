"""Rows of parquet decoded at once: fewer where they are large, each once and in order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, Limit, Reject
from tokflow.documents.formats import arrow, parquet
from tokflow.errors import RawFileError
from tokflow_tests.reading import read_documents

LARGE = "x" * 10_000


def decoded(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Read a file; return of each batch its rows and bytes, as they were decoded."""
    sizes: list[tuple[int, int]] = []

    def heard(batches: Iterator[pa.RecordBatch], *rest: Any) -> Iterator[Any]:
        for batch in batches:
            sizes.append((len(batch), batch.nbytes))
            yield from documents_in(iter([batch]), *rest)

    documents_in = arrow.documents_in
    monkeypatch.setattr(arrow, "documents_in", heard)
    found = list(read_documents(path, DocumentsConfig()))
    texts = [text for batch in found for text in batch.texts.to_pylist()]
    assert texts == pq.read_table(path)["text"].to_pylist()
    return sizes


@pytest.mark.parametrize("texts", [[LARGE] * 600, ["a"] * 300 + [LARGE] * 300, [LARGE, "a"] * 300])
def test_what_a_dictionary_makes_of_a_small_file_is_not_in_memory_at_once(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(parquet, "_DECODED_BYTES", 100_000)
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=400)

    sizes = decoded(tmp_path / "a.parquet", monkeypatch)

    assert sum(rows for rows, _ in sizes) == 600
    assert sum(num_bytes > 200_000 for _, num_bytes in sizes) <= 1  # where large ones begin


def test_a_row_group_of_one_document_that_is_too_large_is_rejected_without_reading_it(
    tmp_path: Path,
):
    path = tmp_path / "a.parquet"
    texts = ["a", "x" * 30_000, "b"]
    kinds = {"row_group_size": 1, "compression": "none", "write_page_checksum": True}
    pq.write_table(pa.table({"text": texts}), path, **kinds)
    path.write_bytes(path.read_bytes().replace(b"x" * 20_000, b"y" * 20_000))  # damaged if read
    config = DocumentsConfig(on_bad_document="reject", limit=Limit(document_bytes=1_000))
    rejects: list[Reject] = []

    [batch] = read_documents(path, config, on_reject=rejects.append)

    assert (batch.texts.to_pylist(), batch.rows.tolist()) == (["a", "b"], [0, 2])
    with pytest.raises(RawFileError, match="CRC"):
        list(read_documents(path, DocumentsConfig()))
    assert [(of.row, of.reason) for of in rejects] == [
        (1, "expected at most 1,000 bytes, found more")
    ]


class ShortLists:
    """A parquet file of 10 rows, of which Arrow makes lists of 3 or less at once."""

    def __init__(self, most: int) -> None:
        self.most = most

    def iter_batches(self, *, batch_size: int, **_: Any) -> Iterator[pa.RecordBatch]:
        for start in range(0, 10, batch_size):
            if batch_size > self.most and start > 0:
                raise pa.ArrowNotImplementedError("Nested data conversions for chunked arrays")
            rows = list(range(start, min(10, start + batch_size)))
            yield pa.record_batch({"row": rows})


def test_rows_that_arrow_cannot_join_are_halved_and_tried_again():
    found: Any = list(parquet._decoded(ShortLists(3), 0, [], 8, 8))

    assert [row for batch, _ in found for row in batch["row"].to_pylist()] == list(range(10))
    assert found[-1][1] == 2


def test_a_row_that_arrow_cannot_read_is_not_called_damaged(tmp_path: Path):
    said = r"expected what pyarrow .* can read, found Nested"
    rows: Any = ShortLists(0)

    with pytest.raises(RawFileError, match=said), arrow.undamaged(tmp_path):
        list(parquet._decoded(rows, 0, [], 8, 8))

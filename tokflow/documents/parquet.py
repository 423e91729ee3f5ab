"""Documents in a column of a parquet file."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokflow.documents.columns import damaged_error, documents_in, find_columns, undamaged
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.parsed import ParsedBatch

_READ_BUFFER_BYTES = 1024 * 1024
"""Without it a whole column chunk, compressed, is in memory at once."""
_MAX_ROWS = 256
"""Rows decoded at once. Few, for a row group may hold small documents first and large ones
last, and no more than its mean is known; 64 MB of 14 kB documents take 0.12 s whether 16 or
1024 are decoded at once, 40 MB of 70-byte documents 0.1 s more with 256 than with 4096."""


def read(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[ParsedBatch]:
    """Yield the documents of the file, a few pages at once, not of row groups."""
    try:
        file = pq.ParquetFile(
            path,
            pre_buffer=False,
            buffer_size=_READ_BUFFER_BYTES,
            page_checksum_verification=True,
        )
    except (pa.ArrowException, OSError) as error:
        raise damaged_error(path, found=str(error)) from error
    with file:
        columns = find_columns(file.schema_arrow, config, path)
        record_batches = _record_batches(file, path, list(config.columns), batch_bytes)
        yield from documents_in(record_batches, columns, config, path)


def _record_batches(
    file: pq.ParquetFile, path: Path, names: list[str], batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    for index in range(file.metadata.num_row_groups):
        row_group = file.metadata.row_group(index)
        batches = file.iter_batches(
            row_groups=[index],
            columns=names,
            batch_size=_rows_at_once(row_group, names, batch_bytes),
            use_threads=False,
        )
        num_rows = 0
        for batch in undamaged(batches, path):
            yield batch
            num_rows += len(batch)
        if num_rows != row_group.num_rows:
            expected = f"{row_group.num_rows:,} rows in row group {index}"
            raise damaged_error(path, found=f"{num_rows:,}", expected=expected)


def _rows_at_once(row_group: pq.RowGroupMetaData, names: list[str], batch_bytes: int) -> int:
    chunks = [row_group.column(index) for index in range(row_group.num_columns)]
    prefixes = tuple(f"{name}." for name in names)  # of what lists and structs hold
    num_bytes = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema in names or chunk.path_in_schema.startswith(prefixes)
    )
    mean_bytes = int(num_bytes) / max(1, int(row_group.num_rows))
    return max(1, min(_MAX_ROWS, int(batch_bytes / max(1, mean_bytes))))

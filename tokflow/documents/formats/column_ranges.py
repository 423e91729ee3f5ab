"""Ranges of parquet and Arrow files: row groups and record batches, and the rows before them."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from tokflow.documents.config import DocumentsConfig
from tokflow.documents.file_range import Before, Range, gathered
from tokflow.documents.formats.columns import (
    for_parquet,
    is_arrow_stream,
    open_source,
    undamaged,
)
from tokflow.documents.formats.parquet import text_bytes


def ranges_of_parquet(path: Path, config: DocumentsConfig, range_bytes: int) -> tuple[Range, ...]:
    """Return row groups gathered to about `range_bytes` of text before it is compressed."""
    import pyarrow.parquet as pq  # which imports ssl and every file system

    with undamaged(path):
        metadata = pq.read_metadata(for_parquet(path))
    names = list(config.columns)
    row_groups = map(metadata.row_group, range(metadata.num_row_groups))
    return gathered([text_bytes(row_group, names) for row_group in row_groups], range_bytes)


def ranges_of_arrow(path: Path, config: DocumentsConfig, range_bytes: int) -> tuple[Range, ...]:
    """Return record batches gathered as if they were of one size.

    Only the batches themselves say how large they are. A stream has none that can be found.
    """
    if is_arrow_stream(path):
        return ()
    with undamaged(path), open_source(path) as source:
        num_batches = pa.ipc.open_file(source).num_record_batches
        num_bytes = source.size()
    return gathered([num_bytes // max(1, num_batches)] * num_batches, range_bytes)


def before_in_parquet(path: Path, config: DocumentsConfig, within: Range) -> Before:
    """Return the rows of the row groups before the range."""
    import pyarrow.parquet as pq

    with undamaged(path):
        metadata = pq.read_metadata(for_parquet(path))
    num_rows = (metadata.row_group(index).num_rows for index in range(within.start))
    return _before(num_rows, config)


def before_in_arrow(path: Path, config: DocumentsConfig, within: Range) -> Before:
    """Return the rows of the record batches before the range, of which one column is read."""
    with undamaged(path), open_source(path) as source:
        schema = pa.ipc.open_file(source).schema
        narrowest = min(range(len(schema)), key=lambda index: _width(schema.field(index).type))
        options = pa.ipc.IpcReadOptions(included_fields=[narrowest])
        reader = pa.ipc.open_file(source, options=options)
        num_rows = [reader.get_batch(index).num_rows for index in range(within.start)]
    return _before(num_rows, config)


def _before(num_rows: Iterable[int], config: DocumentsConfig) -> Before:
    return Before(lines=0, rows=sum(num_rows) * config.documents_per_record)


def _width(type_: pa.DataType) -> int:
    """Return the bits of a value; many where they differ."""
    try:
        return int(type_.bit_width)
    except ValueError:
        return 1 << 20

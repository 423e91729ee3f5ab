"""Documents in a column of an Arrow IPC file (.arrow, .feather) or stream (Hugging Face datasets).

The file is memory-mapped: documents that it holds uncompressed are not copied, and a record
batch of any size costs no memory. It must not be cut while it is read.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tokflow.documents.columns import damaged_error, documents_in, find_columns, undamaged
from tokflow.documents.contract import DocumentsConfig, Found

_FILE_MAGIC = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_MAX_ROWS = 1024
"""Rows looked at at once; a record batch may have millions."""


def read(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[Found]:
    """Yield the documents of the file, up to `_MAX_ROWS` records at once."""
    try:
        source = pa.memory_map(str(path))
        is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError) as error:
        raise damaged_error(path, found=str(error)) from error
    with source:
        columns = find_columns(reader.schema, config, path)
        batches = _of_file(reader) if is_file else _of_stream(reader, source, path)
        yield from documents_in(_slices(undamaged(batches, path)), columns, config, path)


def _of_file(reader: pa.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _of_stream(
    reader: pa.RecordBatchStreamReader, source: pa.MemoryMappedFile, path: Path
) -> Iterator[pa.RecordBatch]:
    yield from reader
    source.seek(source.tell() - len(_STREAM_END))
    if (end := source.read(len(_STREAM_END))) != _STREAM_END:
        raise damaged_error(path, found=f"{end!r}", expected="the mark that ends a stream")


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, len(batch), _MAX_ROWS):
            yield batch.slice(start, _MAX_ROWS)

"""Documents in a column of an Arrow IPC file (.arrow, .feather) or stream (Hugging Face datasets).

A record batch is in memory as a whole while its documents are read, of a file only the columns
that hold them. It is not memory-mapped, for where a mapped file is cut short meanwhile, a signal
ends the process without a word.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from tokflow.documents.columns import damaged_error, documents_in, find_columns, undamaged
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.parsed import ParsedBatch

_FILE_MAGIC = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_MAX_ROWS = 4096
"""Rows looked at at once; a record batch may have millions."""

_Reader: TypeAlias = pa.RecordBatchFileReader | pa.RecordBatchStreamReader


def read(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[ParsedBatch]:
    """Yield the documents of the file, up to `_MAX_ROWS` records at once."""
    with path.open("rb") as file:
        is_stream = file.read(len(_FILE_MAGIC)) != _FILE_MAGIC
    with pa.OSFile(str(path)) as source:
        schema = _open(source, pa.ipc.IpcReadOptions(), path, is_stream=is_stream).schema
        columns = find_columns(schema, config, path)
        fields = sorted({schema.get_field_index(column.name) for column in columns})
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        reader = _open(source, options, path, is_stream=is_stream)
        batches = iter(reader) if is_stream else _of_file(reader)
        yield from documents_in(_small_batches(undamaged(batches, path)), columns, config, path)
        if is_stream:
            _check_end(source, path)


def _open(
    source: pa.OSFile, options: pa.ipc.IpcReadOptions, path: Path, *, is_stream: bool
) -> _Reader:
    source.seek(0)
    try:
        if is_stream:
            return pa.ipc.open_stream(source, options=options)
        return pa.ipc.open_file(source, options=options)
    except (pa.ArrowException, OSError) as error:
        raise damaged_error(path, found=str(error)) from error


def _of_file(reader: pa.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _check_end(source: pa.OSFile, path: Path) -> None:
    """Raise RawFileError if the stream that was read ends without the mark of its end."""
    source.seek(source.tell() - len(_STREAM_END))
    if (end := source.read(len(_STREAM_END))) != _STREAM_END:
        raise damaged_error(path, found=f"{end!r}", expected="the mark that ends a stream")


def _small_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, len(batch), _MAX_ROWS):
            yield batch.slice(start, _MAX_ROWS)

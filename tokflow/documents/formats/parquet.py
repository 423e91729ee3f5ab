"""Documents in columns of parquet files, of which a few pages are in memory at once."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokflow.documents.batch import ParsedBatch, all_bad, too_large
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.formats import Columns, arrow
from tokflow.documents.ranges import Before, OpenRange, Range, gathered

_READ_BUFFER_BYTES = 1024 * 1024
"""Without it a whole column chunk, compressed, is in memory at once."""
_ROWS_OF_PAGES = 256
"""Rows decoded at once. Few, for a row group may hold small documents first and large ones
last, and no more than its mean is known; 64 MB of 14 kB documents take 0.12 s whether 16 or
1024 are decoded at once, 40 MB of 70-byte documents 0.1 s more with 256 than with 4096."""
_HEADER_BYTES = 16_384
_DECODED_BYTES = 50_000_000
"""Fewer rows are decoded at once where they hold more: a dictionary can make 2 GB of a file of 900
bytes, and lists of more than 2 GB Arrow cannot make."""


def read(
    path: Path, config: DocumentsConfig, batch_bytes: int, within: OpenRange | None = None
) -> Iterator[ParsedBatch]:
    """Yield the documents of the file, a few pages at once, not of row groups."""
    import pyarrow.parquet as pq  # which imports ssl and every file system

    with arrow.undamaged(path):
        source = arrow.open_source(path)
        file = pq.ParquetFile(
            source,
            pre_buffer=False,
            buffer_size=_READ_BUFFER_BYTES,
            page_checksum_verification=True,
        )
    with file:
        columns = arrow.find_columns(file.schema_arrow, config, path)
        every = range(file.metadata.num_row_groups)
        kept = every if within is None else every[within.range.start : within.range.stop]
        if isinstance(source, arrow.RemoteSource) and within is not None:
            source.stop_reading_ahead(_end_of(file.metadata.row_group(index) for index in kept))
        for is_too_large, some in groupby(kept, partial(_is_too_large, file, config)):
            if is_too_large:
                yield all_bad(too_large(config.limit), [(None, None) for _ in some])
                continue
            batches = _record_batches(file, path, list(config.columns), batch_bytes, some)
            yield from arrow.documents_in(batches, columns, config, path)


def ranges(path: Path, config: DocumentsConfig, range_bytes: int) -> tuple[Range, ...]:
    """Return row groups gathered to about `range_bytes` of text before it is compressed."""
    return gathered(sizes_of_row_groups(path, config), range_bytes)


def sizes_of_row_groups(path: Path, config: DocumentsConfig) -> list[int]:
    """Return the bytes of each row group's text before compression. Raises: RawFileError."""
    names = list(config.columns)
    return [text_bytes(row_group, names) for row_group in _row_groups(path)]


def before(path: Path, config: DocumentsConfig, within: Range) -> Before:
    """Return the rows of the row groups before the range."""
    num_rows = sum(row_group.num_rows for row_group in _row_groups(path)[: within.start])
    return Before(lines=0, rows=num_rows * config.documents_per_record)


def columns_of(path: Path, config: DocumentsConfig) -> Columns:
    """Return the columns of the schema."""
    return arrow.columns_in(_read_metadata(path).schema.to_arrow_schema())


def check_columns(path: Path, config: DocumentsConfig) -> None:
    """Raise ConfigError unless the file has the columns of `config`."""
    arrow.find_columns(_read_metadata(path).schema.to_arrow_schema(), config, path)


def _row_groups(path: Path) -> list[Any]:
    metadata = _read_metadata(path)
    return [metadata.row_group(index) for index in range(metadata.num_row_groups)]


def _read_metadata(path: Path) -> Any:
    import pyarrow.parquet as pq

    with arrow.undamaged(path), arrow.open_source(path) as source:
        return pq.read_metadata(source)


def _is_too_large(file: Any, config: DocumentsConfig, index: int) -> bool:
    """Return whether a row group is one document that is too large by its metadata.

    Text is in it at most three times, twice of these in statistics, beside headers.
    """
    row_group = file.metadata.row_group(index)
    is_text = config.documents_per_record == 1 and not config.has_records
    most = 3 * config.limit.document_bytes + _HEADER_BYTES * len(config.columns)
    num_bytes = text_bytes(row_group, list(config.columns))
    return bool(row_group.num_rows == 1 and is_text and num_bytes > most)


def _end_of(row_groups: Iterable[Any]) -> int:
    """Return the byte of the file that row groups end before."""
    ends = [0]
    for row_group in row_groups:
        for chunk in map(row_group.column, range(row_group.num_columns)):
            starts = filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset))
            ends.append(min(starts, default=0) + chunk.total_compressed_size)
    return max(ends)


def _record_batches(
    file: Any, path: Path, names: list[str], batch_bytes: int, row_groups: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups, a few at once: one, to begin with, where a dictionary may make
    them larger than the mean that is known."""
    at_once: int | None = None
    for index in row_groups:
        row_group = file.metadata.row_group(index)
        num_bytes = text_bytes(row_group, names)
        mean_bytes = num_bytes / max(1, int(row_group.num_rows))
        most = max(1, min(_ROWS_OF_PAGES, int(batch_bytes / max(1, mean_bytes))))
        if at_once is None and most * num_bytes > _DECODED_BYTES:
            chunks = map(row_group.column, range(row_group.num_columns))
            at_once = 1 if any(chunk.has_dictionary_page for chunk in chunks) else most
        num_rows = 0
        with arrow.undamaged(path):
            for batch, used in _decoded(file, index, names, min(most, at_once or most), most):
                num_rows += len(batch)
                yield batch
                del batch
                at_once = at_once and used
        if num_rows != row_group.num_rows:
            expected = f"{row_group.num_rows:,} rows in row group {index}"
            raise arrow.damaged_error(path, found=f"{num_rows:,}", expected=expected)


def _decoded(
    file: Any, index: int, names: list[str], at_once: int, most: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a row group, and how many are decoded at once from then on: more than one,
    if the first turns out to be small, and fewer than before where they are large. Each change
    decodes the row group from its beginning."""
    num_done, may_grow = 0, at_once == 1
    while at_once:
        position = wanted = 0
        try:
            for batch in file.iter_batches(
                row_groups=[index], columns=names, batch_size=at_once, use_threads=False
            ):
                new = batch.slice(max(0, num_done - position))
                position += len(batch)
                if len(new) == 0:
                    continue
                num_done = position
                fitting = min(most, max(1, _DECODED_BYTES * len(batch) // max(1, batch.nbytes)))
                is_other = fitting < at_once or (may_grow and fitting > at_once)
                yield new, fitting if is_other else at_once
                del batch, new  # a large document is gone when the next is decoded
                if is_other:
                    wanted, may_grow = fitting, False
                    break
        except pa.ArrowNotImplementedError:  # lists of more than 2 GB
            if at_once == 1:
                raise
            wanted = at_once // 2
        at_once = wanted


def text_bytes(row_group: Any, names: list[str]) -> int:
    """Return the bytes that these columns have in a row group before compression."""
    chunks = [row_group.column(index) for index in range(row_group.num_columns)]
    prefixes = tuple(f"{name}." for name in names)  # of what lists and structs hold
    return sum(
        int(chunk.total_uncompressed_size)
        for chunk in chunks
        if chunk.path_in_schema in names or chunk.path_in_schema.startswith(prefixes)
    )

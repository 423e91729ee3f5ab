r"""Documents in a column of a .csv or .tsv file with a header.

Records with more or fewer fields than the header are bad, and so are malformed ones. Every line
of a bad record is a reject of its own, for a quote that is not closed takes up lines that may
have been records. Empty lines take no ordinal. A UTF-8 byte order mark at the start is skipped.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

from tokflow.documents.columns import check_single, missing_column_error
from tokflow.documents.compression import read_blocks
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.csv_records import Dialect, OddRecord, RecordBatch, RecordCutter, unquoted
from tokflow.documents.lines import without_mark
from tokflow.documents.parsed import (
    ParsedBatch,
    Problem,
    all_bad,
    excerpt,
    parse,
    too_large,
)
from tokflow.errors import RawFileError
from tokflow.store.arrow import texts_of


def read_csv(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[ParsedBatch]:
    """Yield the documents of a file with commas between its fields."""
    return _read(path, config, batch_bytes, Dialect(b","))


def read_tsv(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[ParsedBatch]:
    """Yield the documents of a file with tabs between its fields, quoted as in csv."""
    return _read(path, config, batch_bytes, Dialect(b"\t"))


def _read(
    path: Path, config: DocumentsConfig, batch_bytes: int, dialect: Dialect
) -> Iterator[ParsedBatch]:
    byte_offset, blocks = without_mark(read_blocks(path, block_bytes=batch_bytes))
    max_bytes = config.limit.document_bytes
    cutter = RecordCutter(blocks, dialect, max_bytes=max_bytes, byte_offset=byte_offset)
    records = iter(cutter)
    header = _header(next(records, None), dialect, path)
    indices = [_index(header, text, config, path) for text in config.columns]
    cutter.pattern = dialect.records(len(header), set(indices))
    order = [sorted(indices).index(index) for index in indices]
    for some in records:
        if isinstance(some, RecordBatch):
            yield _documents(some, order, config)
        else:
            yield _bad_record(some, dialect, len(header), config)


def _header(first: RecordBatch | OddRecord | None, dialect: Dialect, path: Path) -> list[str]:
    """Return the names of the columns; before they are known every record is odd."""
    found = "an empty file"
    if isinstance(first, OddRecord):
        try:
            if first.problem == "shape":
                return list(dialect.fields(first.data))
            found = "too large a record"
            if first.problem == "open quotes":
                found = _open_quotes(first, dialect)[1]
        except ValueError as error:
            found = str(error)
    raise RawFileError(
        where=f"{path}, line 1",
        expected="a header with the names of the columns",
        found=found,
        remedy="put the header back, or remove the file",
    )


def _index(header: list[str], text: str, config: DocumentsConfig, path: Path) -> int:
    if text not in header:
        raise missing_column_error(path, text, header, config)
    check_single(text, header, path)
    return header.index(text)


def _documents(batch: RecordBatch, order: list[int], config: DocumentsConfig) -> ParsedBatch:
    """Return the documents of records of the right shape."""
    in_file = [list(map(unquoted, column)) for column in zip(*batch.records, strict=True)]
    columns = [texts_of(in_file[index]).view(pa.large_binary()) for index in order]
    return parse(columns, config, place=batch.place)


def _bad_record(
    odd: OddRecord, dialect: Dialect, num_fields: int, config: DocumentsConfig
) -> ParsedBatch:
    """Return every line of the record as a bad document, for each of a record's documents."""
    problem = _what_is_wrong(odd, dialect, num_fields, config)
    places = (place for place in odd.lines() for _ in range(config.documents_per_record))
    # One more than may be set aside is the end, however many there are.
    return all_bad(problem, islice(places, config.max_rejects + 1))


def _what_is_wrong(
    odd: OddRecord, dialect: Dialect, num_fields: int, config: DocumentsConfig
) -> Problem:
    """Return the problem of a record of another shape."""
    if odd.problem == "too large":
        expected, found, remedy = too_large(config.limit)
        of_record = f" (in the record that begins in line {odd.first_line:,})"
        return Problem(f"{expected}, and quotes that are closed", f"{found}{of_record}", remedy)
    last_line = odd.first_line + odd.data.rstrip(b"\n").count(b"\n")
    of_record = ""
    if last_line > odd.first_line:
        of_record = f" (in the record of the lines {odd.first_line:,} to {last_line:,})"
    if odd.problem == "open quotes":
        opened_line, found = _open_quotes(odd, dialect)
        remedy = f"close the quotes of line {opened_line:,}"
        return Problem("quotes that are closed", f"{found}{of_record}", remedy)
    try:
        fields = dialect.fields(odd.data)
        first = list(islice(fields, 20))
        found = f"{len(first) + sum(1 for _ in fields):,}: {excerpt(first)}"
    except ValueError as error:
        return Problem("a record of well-formed fields", f"{error}{of_record}")
    return Problem(f"{num_fields} fields, as in the header", f"{found}{of_record}")


def _open_quotes(odd: OddRecord, dialect: Dialect) -> tuple[int, str]:
    """Return the line that opens the quotes at the end of the file, and what to say of it."""
    line = odd.first_line + odd.data.count(b"\n", 0, dialect.last_field(odd.data))
    return line, f"the end of the file in quotes opened in line {line:,}"

r"""Documents in a column of a .csv or .tsv file with a header.

Records with more or fewer fields than the header are bad, and so are malformed ones. Every line
of a bad record is a reject of its own, for a quote that is not closed takes up lines that may
have been records. Empty lines take no ordinal. A UTF-8 byte order mark at the start is skipped.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow as pa

from tokflow.documents.config import DocumentsConfig
from tokflow.documents.file_formats import format_of
from tokflow.documents.file_range import Before, OpenRange, Range
from tokflow.documents.formats.columns import check_single, missing_column_error
from tokflow.documents.formats.csv_records import (
    Dialect,
    OddRecord,
    RecordBatch,
    RecordCutter,
    unquoted,
)
from tokflow.documents.lines import count_before, read_text
from tokflow.documents.parsed import (
    ParsedBatch,
    Problem,
    all_bad,
    excerpt,
    parse,
    too_large,
    value_json,
)
from tokflow.errors import RawFileError
from tokflow.store.arrow import texts_of

_BLOCK = 2 * 1024 * 1024


def read_csv(
    path: Path, config: DocumentsConfig, batch_bytes: int, within: OpenRange | None = None
) -> Iterator[ParsedBatch]:
    """Yield the documents of a file with commas between its fields."""
    return _read(path, config, batch_bytes, Dialect(b","), within)


def read_tsv(
    path: Path, config: DocumentsConfig, batch_bytes: int, within: OpenRange | None = None
) -> Iterator[ParsedBatch]:
    """Yield the documents of a file with tabs between its fields, quoted as in csv."""
    return _read(path, config, batch_bytes, Dialect(b"\t"), within)


def read_header(path: Path, config: DocumentsConfig) -> list[str]:
    """Return the names of the columns. Raises: RawFileError."""
    dialect = Dialect(b"\t" if format_of(path, config) == "tsv" else b",")
    _, cutter = _cutter(path, config, _BLOCK, dialect, None)
    return _header(next(iter(cutter), None), dialect, path)


def before(path: Path, config: DocumentsConfig, within: Range) -> Before:
    """Return what stands before a range of records; the header is no row."""
    max_bytes, num_each = config.limit.document_bytes, config.documents_per_record
    count = count_before(path, within, blank=b"\r", max_bytes=max_bytes, num_each=num_each)
    if not _has_quotes_before(path, within.start):
        return Before(count.lines, max(0, count.rows - num_each))
    read = read_tsv if format_of(path, config) == "tsv" else read_csv
    same = OpenRange(Range(0, within.start, lines_before=0), lambda: Before(0, 0))
    return Before(count.lines, sum(found.num_rows for found in read(path, config, _BLOCK, same)))


def _has_quotes_before(path: Path, stop: int) -> bool:
    with path.open("rb", buffering=0) as file:
        while block := file.read(min(_BLOCK, stop - file.tell())):
            if b'"' in block:
                return True
    return False


def _read(
    path: Path,
    config: DocumentsConfig,
    batch_bytes: int,
    dialect: Dialect,
    within: OpenRange | None,
) -> Iterator[ParsedBatch]:
    _, cutter = _cutter(path, config, batch_bytes, dialect, None)
    records = iter(cutter)
    first = next(records, None)
    header = _header(first, dialect, path)
    if within is not None:
        byte_offset, cutter = _cutter(path, config, batch_bytes, dialect, within)
        records = iter(cutter)
        if first is not None and byte_offset <= first.byte_offset:
            next(records, None)  # the header, or nothing where it is in another range
    indices = [_index(header, text, config, path) for text in config.columns]
    cutter.pattern = dialect.records(len(header), set(indices))
    order = [sorted(indices).index(index) for index in indices]
    for some in records:
        if isinstance(some, RecordBatch):
            yield _documents(some, order, config)
        else:
            problem = _what_is_wrong(_in_file(some, within), dialect, len(header), config)
            yield _bad_record(some, problem, config)


def _cutter(
    path: Path,
    config: DocumentsConfig,
    batch_bytes: int,
    dialect: Dialect,
    within: OpenRange | None,
) -> tuple[int, RecordCutter]:
    """Return the first byte of the file, or of a range, and its records."""
    byte_offset, blocks = read_text(path, within, block_bytes=batch_bytes, has_mark=True)
    max_bytes = config.limit.document_bytes
    cutter = RecordCutter(blocks, dialect, max_bytes=max_bytes, byte_offset=byte_offset)
    return byte_offset, cutter


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
    field_of = (lambda field: value_json(unquoted(field))) if config.has_records else unquoted
    fields = [list(map(field_of, column)) for column in zip(*batch.records, strict=True)]
    columns = [texts_of(fields[index]).view(pa.large_binary()) for index in order]
    return parse(columns, config, place=batch.place)


def _in_file(odd: OddRecord, within: OpenRange | None) -> OddRecord:
    """Return the record with its lines counted from the beginning of the file."""
    if within is None:
        return odd
    num_lines = within.lines_before
    return replace(odd, first_line=odd.first_line + num_lines, line=odd.line + num_lines)


def _bad_record(odd: OddRecord, problem: Problem, config: DocumentsConfig) -> ParsedBatch:
    """Return every line of the record as a bad document, for each of a record's documents."""
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

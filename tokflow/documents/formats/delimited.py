r"""Documents in a column of a .csv or .tsv file with a header.

Records with more or fewer fields than the header are bad, and so are malformed ones. Every line
of a bad record is a reject of its own, for a quote that is not closed takes up lines that may
have been records. Empty lines take no ordinal. A byte order mark at the start is skipped, and so is
Excel's line `sep=;` before the header.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

from tokflow.documents.batch import (
    ParsedBatch,
    Problem,
    all_bad,
    excerpt,
    parse,
    too_large,
    value_json,
)
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.decoding import refuse_other_kinds
from tokflow.documents.formats import Columns
from tokflow.documents.formats.arrow import check_single, missing_column_error
from tokflow.documents.formats.csv_records import (
    Dialect,
    OddRecord,
    RecordBatch,
    RecordCutter,
    dialect_of,
)
from tokflow.documents.ranges import read_text
from tokflow.errors import BadContentError, ConfigError
from tokflow.store.tables import texts_of

_BLOCK = 2 * 1024 * 1024
_DELIMITERS = (b",", b";", b"\t", b"|")
"""Delimiters that are looked for in headers, the usual first."""
_EXCEL_LINE = re.compile(rb'"?sep=([^"\r\n\x80-\xff])"?\s*', re.IGNORECASE)
"""The line before the header in which Excel names the delimiter."""


def columns_of(path: Path, config: DocumentsConfig) -> Columns:
    """Return the columns; none of them is known to hold chats."""
    names = _header(iter(_cutter(path, config)), dialect_of(path, config), path, config)
    return Columns(names, names, [])


def check_columns(path: Path, config: DocumentsConfig) -> None:
    """Raise ConfigError unless the file has the columns of `config`."""
    _indices(columns_of(path, config).names, config, path)


def find_delimiter(path: Path, config: DocumentsConfig) -> str | None:
    """Return the delimiter that the header of a file has most often, or Excel's line before it
    names; None where it is that of the config."""
    cutter, dialect = _cutter(path, config), dialect_of(path, config)
    first = next(iter(cutter), None)
    if not isinstance(first, OddRecord):
        return None
    named = _EXCEL_LINE.fullmatch(first.data)
    delimiter = named[1] if named else _likely_delimiter(first.data, dialect)
    return None if delimiter == dialect.delimiter else delimiter.decode()


def read(
    path: Path, config: DocumentsConfig, batch_bytes: int, within: None = None
) -> Iterator[ParsedBatch]:
    """Yield the documents of about `batch_bytes` of the file at once; it has no ranges."""
    cutter, dialect = _cutter(path, config, batch_bytes), dialect_of(path, config)
    names = _header(records := iter(cutter), dialect, path, config)
    indices = _indices(names, config, path)
    kept = sorted({index for index in indices if index is not None})
    cutter.pattern = dialect.records(len(names), set(kept))
    order = [None if index is None else kept.index(index) for index in indices]
    text_of = dialect.text
    field_of = (lambda field: value_json(text_of(field))) if config.has_records else text_of
    for some in records:
        if isinstance(some, RecordBatch):
            fields = [list(map(field_of, column)) for column in zip(*some.records, strict=True)]
            fields.append([b"null"] * len(some.records))
            values = [fields[-1 if index is None else index] for index in order]
            columns = [texts_of(of_column).view(pa.large_binary()) for of_column in values]
            yield parse(columns, config, place=some.place, encoding=config.encoding)
        else:
            problem = _what_is_wrong(some, dialect, len(names), config)
            places = (place for place in some.lines() for _ in range(config.documents_per_record))
            # One more than may be set aside is the end, however many there are.
            yield all_bad(problem, islice(places, config.max_rejects + 1))


def _cutter(path: Path, config: DocumentsConfig, size: int = _BLOCK) -> RecordCutter:
    """Return the records of the file, read in blocks of about `size`."""
    begin, blocks = read_text(path, None, block_bytes=size, encoding=config.encoding)
    most = config.limit.document_bytes
    return RecordCutter(blocks, dialect_of(path, config), max_bytes=most, byte_offset=begin)


def _header(
    records: Iterator[RecordBatch | OddRecord],
    dialect: Dialect,
    path: Path,
    config: DocumentsConfig,
) -> list[str]:
    """Return the names of the columns, which are read; before they are known every record is
    odd."""
    first, line = next(records, None), 1
    if isinstance(first, OddRecord) and (named := _EXCEL_LINE.fullmatch(first.data)):
        if named[1] != dialect.delimiter:
            raise _delimiter_error(path, named[1], "a line `sep=` that names", dialect)
        first, line = next(records, None), 2
    found = "an empty file"
    if isinstance(first, OddRecord):
        refuse_other_kinds(first.data, path, expected="a header with the names of the columns")
        likely = _likely_delimiter(first.data, dialect)
        if config.delimiter is None and likely != dialect.delimiter:
            raise _delimiter_error(path, likely, "a header with more of", dialect)
        try:
            if first.problem == "shape":
                return list(dialect.fields(first.data))
            found = "too large a record"
            if first.problem == "open quotes":
                found = _open_quotes(first, dialect)[1]
        except ValueError as error:
            found = str(error)
    raise BadContentError(
        where=f"{path}, line {line}",
        expected="a header with the names of the columns",
        found=found,
        remedy="put the header back, or remove the file",
    )


def _likely_delimiter(header: bytes, dialect: Dialect) -> bytes:
    """Return what is most often in a header outside of quotes: of equals the dialect's."""
    bare = re.sub(rb'"[^"]*"', b"", header)
    return max((dialect.delimiter, *_DELIMITERS), key=bare.count)


def _delimiter_error(path: Path, likely: bytes, found: str, dialect: Dialect) -> ConfigError:
    name, used = (repr(of.decode()).replace("'", '"') for of in (likely, dialect.delimiter))
    return ConfigError(
        where=f"{path}, line 1",
        expected=f"fields between {used}",
        found=f"{found} {name}",
        remedy=f"set documents.delimiter to {name}, or to {used} if that is right",
    )


def _indices(header: list[str], config: DocumentsConfig, path: Path) -> list[int | None]:
    """Return which columns are read; None for one that a file may lack. Raises: ConfigError."""
    for text in config.columns:
        if text not in header and text not in config.spare_columns:
            raise missing_column_error(path, text, header, config)
        check_single(text, header, path)
    return [header.index(text) if text in header else None for text in config.columns]


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
    """Return the line that opens the quotes at the end of the file, and its description."""
    line = odd.first_line + odd.data.count(b"\n", 0, dialect.last_field(odd.data))
    return line, f"the end of the file in quotes opened in line {line:,}"

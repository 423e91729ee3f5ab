r"""Documents in a column of a .csv or .tsv file with a header.

Records are read as Python's csv module reads them, strictly: a field that begins with a double
quote ends with one, and in it "" is a quote and line ends are text; in any other field, and in all
where there is no quoting, quotes are text. A record ends at \n or \r\n outside quotes, a malformed
one at the end of the line where it is malformed. Empty lines are no records and take no ordinal. A
byte order mark at the start is skipped, and so is Excel's line `sep=;` before the header. Records
with more or fewer fields than the header are bad, and so are malformed ones. Every line of a bad
record is a reject of its own, for a quote that is not closed takes up lines that may be records.

Records are found by regular expressions. The csv module takes four bytes of memory for a
character and has a largest field, which can be set for the whole process alone; reading with it
took 2.8 times as long for records of 27 bytes, 1.5 times for records of 2 kB.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from tokflow.documents import batch
from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.documents.decoding import refuse_other_kinds
from tokflow.documents.formats import FIELD_DEFAULTS, Columns, format_of
from tokflow.documents.formats.arrow import check_single, missing_column_error
from tokflow.documents.ranges import read_text
from tokflow.errors import BadContentError, ConfigError
from tokflow.store.tables import texts_of

_DELIMITERS = (b",", b";", b"\t", b"|")
"""Delimiters that are looked for in headers, the usual first."""
_EXCEL_LINE = re.compile(rb'"?sep=([^"\r\n\x80-\xff])"?\s*', re.IGNORECASE)
"""The line before the header in which Excel names the delimiter."""
_A_HEADER = "a header with the names of the columns"
_EMPTY_LINES = re.compile(rb"(?:\r?+\n)*+")
_IN_QUOTES = re.compile(rb'[^"]*+(?:""[^"]*+)*+')
Oddity: TypeAlias = Literal["shape", "open quotes", "too large"]
Records: TypeAlias = Iterator["RecordBatch | OddRecord"]


class Dialect:
    """Fields between one delimiter, quoted or not, as regular expressions."""

    def __init__(self, delimiter: bytes, *, has_quotes: bool = True) -> None:
        self.delimiter = delimiter
        self.has_quotes = has_quotes
        escaped = re.escape(delimiter)
        unquoted, quoted, not_quote = rb"[^%b\r\n]*+" % escaped, b"(?!)", b""
        if has_quotes:
            unquoted = rb'(?:[^"%b\r\n][^%b\r\n]*+)?+' % (escaped, escaped)
            quoted, not_quote = rb'"%b"' % _IN_QUOTES.pattern, rb'(?!")'
        self._field = rb"%b|%b" % (quoted, unquoted)
        self._field_with_end = re.compile(rb"(%b)(%b|\r*+\n)?" % (self._field, escaped))
        self._whole_fields = re.compile(rb"(?:(?:%b)%b)*+" % (self._field, escaped))
        self.record = re.compile(
            rb"%b(?:%b|%b%b)[^\n]*+\n" % (self._whole_fields.pattern, quoted, not_quote, unquoted)
        )
        """Matches a record of any shape, well-formed or not, up to its end."""

    def records(self, num_fields: int, kept: set[int]) -> re.Pattern[bytes]:
        """Return a pattern of empty lines and a record of `num_fields`, or else of nothing.

        It has a group for each field that is kept, with its quotes.
        """
        fields = (b"(%b)" if index in kept else b"(?:%b)" for index in range(num_fields))
        record = re.escape(self.delimiter).join(field % self._field for field in fields)
        return re.compile(rb"%b(?![\r\n])%b\r*+\n|" % (_EMPTY_LINES.pattern, record))

    def fields(self, record: bytes) -> Iterator[str]:
        """Yield the fields of a record; a byte that is no UTF-8 is a lone surrogate.

        Raises: ValueError, which describes where the record is malformed.
        """
        for match in self._field_with_end.finditer(record):
            yield self.text(match[1]).decode("utf-8", "surrogateescape")
            if match[2] != self.delimiter:
                break
        if match[2] is None and self.has_quotes and match[1].startswith(b'"'):
            after = record[match.end() : match.end() + 80].rstrip(b"\r\n")
            raise ValueError(
                f"{batch.excerpt(after.decode('utf-8', 'replace'))} after a closing quote"
            )
        if match[2] is None:
            raise ValueError("a carriage return outside quotes")

    def last_field(self, record: bytes) -> int:
        """Return where the last field begins of a record that has no end."""
        return _end_of(self._whole_fields, record, 0)

    def abridged(self, record: bytes) -> bytes:
        """Return a few bytes after which a record goes on as after its beginning `record`."""
        field = record[self.last_field(record) :]
        if field[:1] != b'"' or not self.has_quotes:
            return b'""x' if b"\r" in field else field[:1]  # malformed; or within a field
        num_left = len(field) - _end_of(_IN_QUOTES, field, 1)
        if num_left == 0:
            return b'"'
        return b'""' if num_left == 1 else b'""x'  # a quote that closes, or the first of two

    def text(self, field: bytes) -> bytes:
        """Return the text of a field."""
        is_quoted = field[:1] == b'"' and self.has_quotes
        return field[1:-1].replace(b'""', b'"') if is_quoted else field


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records of the right shape, one after another."""

    records: list[tuple[bytes, ...]]
    """The fields of each that are kept, in the order of the file, with their quotes."""
    place: Callable[[int], batch.Place]
    """Returns the line and the byte offset of a record: all are found once more when the first is
    asked for. To keep matches in place of fields took 1.5 times as long for records of 27 bytes."""


@dataclass(frozen=True, slots=True)
class OddRecord:
    """A record of another shape, or, where it is too large, a part of one."""

    problem: Oddity
    data: bytes
    first_line: int
    """The line at which the record begins."""
    line: int
    """The line of the first byte of `data`."""
    byte_offset: int
    is_mid_line: bool
    """True if `data` begins within a line."""

    def lines(self) -> Iterator[tuple[int, int]]:
        """Yield the line and the byte offset of each line that begins in `data`."""
        if self.data and not self.is_mid_line:
            yield self.line, self.byte_offset
        for nth, line_end in enumerate(re.finditer(rb"\n(?!\Z)", self.data), 1):
            yield self.line + nth, self.byte_offset + line_end.end()


class RecordCutter:
    """The records of blocks. One of more than `max_bytes` is not held, but given in parts.

    Iterating yields a RecordBatch of a block's records up to one that `pattern` does not match,
    which is an OddRecord, and so on. `pattern` may be set between two steps.
    """

    def __init__(
        self, blocks: Iterable[bytes], dialect: Dialect, *, max_bytes: int, byte_offset: int
    ) -> None:
        self.pattern = re.compile(b"")
        """Matches a record of the right shape, as by `Dialect.records`."""
        self.dialect = dialect
        self._blocks = blocks
        self._max_bytes = max_bytes
        self._byte_offset = byte_offset
        self._line = self._record_line = 1
        self._is_mid_line = False
        self._given: bytes | None = None
        """Stands for the parts that were given of a record that is too large."""

    def __iter__(self) -> Records:
        held: list[bytes] = []
        num_bytes = enough = 0
        for block in self._blocks:
            held.append(block)
            num_bytes += len(block)
            if num_bytes < enough:
                continue
            rest = yield from self._cut(b"".join(held))
            if len(rest) > self._max_bytes or self._given is not None:
                yield self._odd("too large", rest)
                self._pass(rest, 0, len(rest))
                self._given = self.dialect.abridged((self._given or b"") + rest)
                rest = b""
            held, num_bytes = [rest], len(rest)
            # Looked at again when it has doubled, a record takes time in proportion to its size.
            enough = min(2 * num_bytes, self._max_bytes + 1)
        if self._given is None:
            rest = yield from self._cut(b"".join((*held, b"\n")))
            if rest:
                yield self._odd("open quotes", rest[:-1])

    def _cut(self, data: bytes) -> Generator[RecordBatch | OddRecord, None, bytes]:
        """Yield the records that end in `data`, and return what comes after them."""
        position = 0
        while True:
            if self._given is None:
                found, stop = self._batch(data, position)
                if found.records:
                    yield found
                if stop > position:
                    self._pass(data, position, stop)
                    position = stop
                    continue
            end = self._end(data, position)
            if end is None:
                return data[position:]
            if self._given is not None or end - 1 - position > self._max_bytes:
                yield self._odd("too large", data[position:end])
            elif data[position:end].strip(b"\r\n"):
                yield self._odd("shape", data[position:end])
            self._given = None
            self._pass(data, position, end)
            position = end

    def _batch(self, data: bytes, start: int) -> tuple[RecordBatch, int]:
        """Return the records from `start`, and where they and empty lines after them end."""
        records, stop, line, byte_offset = [], start, self._line, self._byte_offset
        for match in self.pattern.finditer(data, start):
            end = match.end()
            if end == stop or end - 1 - stop > self._max_bytes:
                break
            records.append(match.groups())
            stop = end
        matches = self.pattern.finditer(data, start)

        @cache
        def places() -> list[batch.Place]:
            found, counted, at = list[batch.Place](), start, line
            for match in islice(matches, len(records)):
                begin = _end_of(_EMPTY_LINES, data, match.start())
                at += data.count(b"\n", counted, begin)
                found.append((at, byte_offset + begin - start))
                counted = begin
            return found

        end = _end_of(_EMPTY_LINES, data, stop)
        return RecordBatch(records, lambda index: places()[index]), end

    def _end(self, data: bytes, start: int) -> int | None:
        """Return where the record ends that is at `start`, or was given in part."""
        given = self._given or b""
        match = self.dialect.record.match(given + data, start)
        return match and match.end() - len(given)

    def _odd(self, problem: Oddity, data: bytes) -> OddRecord:
        if self._given is None:
            self._record_line = self._line
        return OddRecord(
            problem, data, self._record_line, self._line, self._byte_offset, self._is_mid_line
        )

    def _pass(self, data: bytes, start: int, stop: int) -> None:
        self._line += data.count(b"\n", start, stop)
        self._byte_offset += stop - start
        self._is_mid_line = data[stop - 1 : stop] != b"\n"


def _end_of(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    """Return where what the pattern matches ends; it may match nothing."""
    match = pattern.match(data, position)
    return position if match is None else match.end()


def columns_of(path: Path, config: DocumentsConfig) -> Columns:
    """Return the columns; none of them is known to hold chats."""
    cutter = _cutter(path, config)
    names = _header(iter(cutter), cutter.dialect, path, config)
    return Columns(names, names, [])


def check_columns(path: Path, config: DocumentsConfig) -> None:
    """Raise ConfigError unless the file has the columns of `config`."""
    _indices(columns_of(path, config).names, config, path)


def find_delimiter(path: Path, config: DocumentsConfig) -> str | None:
    """Return the delimiter that the header of a file has most often, or Excel's line before it
    names; None where it is that of the config."""
    cutter = _cutter(path, config)
    first, dialect = next(iter(cutter), None), cutter.dialect
    if not isinstance(first, OddRecord):
        return None
    named = _EXCEL_LINE.fullmatch(first.data)
    delimiter = named[1] if named else _likely_delimiter(first.data, dialect)
    return None if delimiter == dialect.delimiter else delimiter.decode()


def read(
    path: Path, config: DocumentsConfig, batch_bytes: int, within: None = None
) -> Iterator[batch.ParsedBatch]:
    """Yield the documents of about `batch_bytes` of the file at once; it has no ranges."""
    cutter = _cutter(path, config, batch_bytes)
    dialect = cutter.dialect
    names = _header(records := iter(cutter), dialect, path, config)
    indices = _indices(names, config, path)
    kept = sorted({index for index in indices if index is not None})
    cutter.pattern = dialect.records(len(names), set(kept))
    order = [None if index is None else kept.index(index) for index in indices]
    text_of = dialect.text
    field_of = (lambda field: batch.value_json(text_of(field))) if config.has_records else text_of
    for some in records:
        if isinstance(some, RecordBatch):
            fields = [list(map(field_of, column)) for column in zip(*some.records, strict=True)]
            fields.append([b"null"] * len(some.records))
            values = [fields[-1 if index is None else index] for index in order]
            columns = [texts_of(of_column).view(pa.large_binary()) for of_column in values]
            yield batch.parse(columns, config, place=some.place, encoding=config.encoding)
        else:
            problem = _problem_of(some, dialect, len(names), config.limit)
            places = (place for place in some.lines() for _ in range(config.documents_per_record))
            # One more than may be set aside is the end, however many there are.
            yield batch.all_bad(problem, islice(places, config.max_rejects + 1))


def _cutter(path: Path, config: DocumentsConfig, size: int = 2**21) -> RecordCutter:
    """Return the records of the file, read in blocks of about `size`."""
    begin, blocks = read_text(path, None, block_bytes=size, encoding=config.encoding)
    format_, most = format_of(path, config), config.limit.document_bytes
    delimiter = config.delimiter or FIELD_DEFAULTS["delimiter"][format_]
    quoting = config.quoting or FIELD_DEFAULTS["quoting"][format_]
    dialect = Dialect(delimiter.encode(), has_quotes=quoting == "double")
    return RecordCutter(blocks, dialect, max_bytes=most, byte_offset=begin)


def _header(records: Records, dialect: Dialect, path: Path, config: DocumentsConfig) -> list[str]:
    """Return the names of the columns, which are read; until then every record is odd."""
    first, line, found = next(records, None), 1, "an empty file"
    if isinstance(first, OddRecord) and (named := _EXCEL_LINE.fullmatch(first.data)):
        if named[1] != dialect.delimiter:
            raise _delimiter_error(path, named[1], "a line `sep=` that names", dialect)
        first, line = next(records, None), 2
    if isinstance(first, OddRecord):
        refuse_other_kinds(first.data, path, expected=_A_HEADER)
        likely = _likely_delimiter(first.data, dialect)
        if config.delimiter is None and likely != dialect.delimiter:
            raise _delimiter_error(path, likely, "a header with more of", dialect)
        try:
            if first.problem == "shape":
                return list(dialect.fields(first.data))
            is_open = first.problem == "open quotes"
            found = _open_quotes(first, dialect)[1] if is_open else "too large a record"
        except ValueError as error:
            found = str(error)
    where = f"{path}, line {line}"
    remedy = "put the header back, or remove the file"
    raise BadContentError(where=where, expected=_A_HEADER, found=found, remedy=remedy)


def _likely_delimiter(header: bytes, dialect: Dialect) -> bytes:
    """Return what is most often in a header outside of quotes: of equals the dialect's."""
    bare = re.sub(rb'"[^"]*"', b"", header)
    return max((dialect.delimiter, *_DELIMITERS), key=bare.count)


def _delimiter_error(path: Path, likely: bytes, found: str, dialect: Dialect) -> ConfigError:
    name, used = (repr(of.decode()).replace("'", '"') for of in (likely, dialect.delimiter))
    where = f"{path}, line 1"
    expected = f"fields between {used}"
    remedy = f"set documents.delimiter to {name}, or to {used} if that is right"
    return ConfigError(where=where, expected=expected, found=f"{found} {name}", remedy=remedy)


def _indices(header: list[str], config: DocumentsConfig, path: Path) -> list[int | None]:
    """Return which columns are read; None for one that a file may lack. Raises: ConfigError."""
    for text in config.columns:
        if text not in header and text not in config.spare_columns:
            raise missing_column_error(path, text, header, config)
        check_single(text, header, path)
    return [header.index(text) if text in header else None for text in config.columns]


def _problem_of(odd: OddRecord, dialect: Dialect, num_fields: int, limit: Limit) -> batch.Problem:
    """Return the problem of a record of another shape."""
    if odd.problem == "too large":
        expected, found, remedy = batch.too_large(limit)
        of_record = f" (in the record that begins in line {odd.first_line:,})"
        return batch.Problem(
            f"{expected}, and quotes that are closed", f"{found}{of_record}", remedy
        )
    last_line = odd.first_line + odd.data.rstrip(b"\n").count(b"\n")
    of_record = ""
    if last_line > odd.first_line:
        of_record = f" (in the record of the lines {odd.first_line:,} to {last_line:,})"
    if odd.problem == "open quotes":
        opened_line, found = _open_quotes(odd, dialect)
        remedy = f"close the quotes of line {opened_line:,}"
        return batch.Problem("quotes that are closed", f"{found}{of_record}", remedy)
    try:
        fields = dialect.fields(odd.data)
        first = list(islice(fields, 20))
        found = f"{len(first) + sum(1 for _ in fields):,}: {batch.excerpt(first)}"
    except ValueError as error:
        return batch.Problem("a record of well-formed fields", f"{error}{of_record}")
    return batch.Problem(f"{num_fields} fields, as in the header", f"{found}{of_record}")


def _open_quotes(odd: OddRecord, dialect: Dialect) -> tuple[int, str]:
    """Return the line that opens the quotes at the end of the file, and its description."""
    line = odd.first_line + odd.data.count(b"\n", 0, dialect.last_field(odd.data))
    return line, f"the end of the file in quotes opened in line {line:,}"

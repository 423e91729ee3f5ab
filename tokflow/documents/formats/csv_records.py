r"""Records of csv and tsv files: fields between delimiters, cut from blocks of bytes.

As Python's csv module reads them, strictly: a field that begins with a double quote ends with
one, and in it "" is a quote and line ends are text; in any other field, and in all where there is
no quoting, quotes are text. A record ends at \n or \r\n outside quotes, a malformed one at the end
of the line where it is malformed. Empty lines are no records.

Records are found by regular expressions. The csv module takes four bytes of memory for a
character and has a largest field, which can be set for the whole process alone; reading with it
took 2.8 times as long for records of 27 bytes, 1.5 times for records of 2 kB.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from tokflow.documents.batch import excerpt
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.formats import FIELD_DEFAULTS, format_of

_EMPTY_LINES = re.compile(rb"(?:\r?+\n)*+")
_IN_QUOTES = re.compile(rb'[^"]*+(?:""[^"]*+)*+')
Oddity: TypeAlias = Literal["shape", "open quotes", "too large"]


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
        fields = [
            (b"(%b)" if index in kept else b"(?:%b)") % self._field for index in range(num_fields)
        ]
        record = re.escape(self.delimiter).join(fields)
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
            raise ValueError(f"{excerpt(after.decode('utf-8', 'replace'))} after a closing quote")
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


@dataclass(frozen=True)
class RecordBatch:
    """Records of the right shape, one after another."""

    records: list[tuple[bytes, ...]]
    """The fields of each that are kept, in the order of the file, with their quotes."""
    matches: Iterable[re.Match[bytes]]
    """The same once more, found when a place is asked for. To keep matches in place of fields took
    1.5 times as long for records of 27 bytes."""
    start: int
    """Byte of what was matched at which the batch begins."""
    line: int
    """At `start`, counted from 1."""
    byte_offset: int

    def place(self, index: int) -> tuple[int, int]:
        """Return the line and the byte offset of a record."""
        return self._places[index]

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        places, line, byte_offset, counted = [], self.line, self.byte_offset, self.start
        for _, match in zip(self.records, self.matches, strict=False):
            begin = _end_of(_EMPTY_LINES, match.string, match.start())
            line += match.string.count(b"\n", counted, begin)
            byte_offset += begin - counted
            counted = begin
            places.append((line, byte_offset))
        return places


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


def dialect_of(path: Path, config: DocumentsConfig) -> Dialect:
    """Return how the records of a file are read."""
    format_ = format_of(path, config)
    delimiter = config.delimiter or FIELD_DEFAULTS["delimiter"][format_]
    quoting = config.quoting or FIELD_DEFAULTS["quoting"][format_]
    return Dialect(delimiter.encode(), has_quotes=quoting == "double")


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
        self._blocks = blocks
        self._max_bytes = max_bytes
        self._dialect = dialect
        self._byte_offset = byte_offset
        self._line = 1
        self._record_line = 1
        self._is_mid_line = False
        self._given: bytes | None = None
        """Stands for the parts that were given of a record that is too large."""

    def __iter__(self) -> Iterator[RecordBatch | OddRecord]:
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
                self._given = self._dialect.abridged((self._given or b"") + rest)
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
                batch, stop = self._batch(data, position)
                if batch.records:
                    yield batch
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
        records, stop = [], start
        for match in self.pattern.finditer(data, start):
            end = match.end()
            if end == stop or end - 1 - stop > self._max_bytes:
                break
            records.append(match.groups())
            stop = end
        matches = self.pattern.finditer(data, start)
        batch = RecordBatch(records, matches, start, self._line, self._byte_offset)
        return batch, _end_of(_EMPTY_LINES, data, stop)

    def _end(self, data: bytes, start: int) -> int | None:
        """Return where the record ends that is at `start`, or was given in part."""
        if self._given:
            match = self._dialect.record.match(self._given + data)
            return match and match.end() - len(self._given)
        match = self._dialect.record.match(data, start)
        return match and match.end()

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

r"""Documents in a column of a .csv or .tsv file with a header.

As Python's csv module reads them, strictly: fields may stand in double quotes, where "" is a
quote and line ends are text; a record ends at \n or \r\n outside quotes. Records with more or
fewer fields than the header are bad; empty lines are skipped and take no ordinal. A UTF-8 byte
order mark at the start is skipped.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokflow.arrays import texts_of
from tokflow.documents.columns import missing_column_error
from tokflow.documents.compression import read_blocks
from tokflow.documents.contract import BadDocument, Batch, DocumentsConfig, Found, shortened
from tokflow.documents.pieces import Pieces, cut_lines
from tokflow.documents.texts import completion_spans, invalid_utf8
from tokflow.errors import ConfigError, RawFileError, four_parts


def read_csv(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[Found]:
    """Yield the documents of a file with commas between its fields."""
    return _read(path, config, batch_bytes, delimiter=",")


def read_tsv(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[Found]:
    """Yield the documents of a file with tabs between its fields, quoted as in csv."""
    return _read(path, config, batch_bytes, delimiter="\t")


def _read(
    path: Path, config: DocumentsConfig, batch_bytes: int, *, delimiter: str
) -> Iterator[Found]:
    lines = _Lines(cut_lines(read_blocks(path, block_bytes=batch_bytes)))
    records = _records(lines, delimiter)
    header = _header(records, path)
    indices = [_index(header, text, config, path) for text in config.columns]
    if (separator := config.separator_of_columns) is not None:
        found = _Collector([indices], separator)
    else:
        found = _Collector([[index] for index in indices], "")
    for record in records:
        found.add(record, header)
        if found.size >= batch_bytes:
            yield found.take(config)
    yield found.take(config)


@dataclass(frozen=True, slots=True)
class _Record:
    """A record of the file, where its first line stands, and what the csv module thinks of it."""

    line: int
    byte_offset: int
    fields: list[str]
    error: str | None = None


class _Lines:
    """The decoded lines, each with its end, of which the csv module makes records."""

    def __init__(self, lines: Iterable[Pieces]) -> None:
        self._lines = lines
        self.byte_offset = 0
        """Of the line that comes next."""

    def __iter__(self) -> Iterator[str]:
        for lines in self._lines:
            self.byte_offset = lines.byte_offset
            for line in lines.pieces:
                self.byte_offset += len(line) + 1
                # A byte that is no UTF-8 becomes a lone surrogate, which no UTF-8 gives, so
                # that it spoils its own record only.
                yield line.decode("utf-8", "surrogateescape") + "\n"


def _records(lines: _Lines, delimiter: str) -> Iterator[_Record]:
    csv.field_size_limit(2**31 - 1)  # for the whole process; the default is 128 KiB
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line, byte_offset = reader.line_num + 1, lines.byte_offset
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield _Record(line, byte_offset, [], _described(error))
        else:
            if fields:
                yield _Record(line, byte_offset, fields)


def _described(error: csv.Error) -> str:
    # The module's own words for this one tell how to open a file.
    return "a carriage return outside quotes" if "new-line" in str(error) else str(error)


def _header(records: Iterator[_Record], path: Path) -> list[str]:
    header = next(records, None)
    if header is None or header.error is not None:
        raise RawFileError(
            four_parts(
                where=f"{path}, line 1",
                expected="a header with the names of the columns",
                found="an empty file" if header is None else f"{header.error}",
                remedy="put the header back, or remove the file",
            )
        )
    return header.fields


def _index(header: list[str], text: str, config: DocumentsConfig, path: Path) -> int:
    if text not in header:
        raise missing_column_error(path, text, header, config)
    if header.count(text) > 1:
        raise ConfigError(
            four_parts(
                where=path,
                expected=f"one column {text!r}",
                found=f"{header.count(text)} of them",
                remedy="rename one of them in the header",
            )
        )
    return header.index(text)


class _Collector:
    """Documents and bad documents until they are taken as one Found.

    `documents` has the columns of each document of a record, which `separator` joins.
    """

    def __init__(self, documents: list[list[int]], separator: str) -> None:
        self._documents = documents
        self._separator = separator
        self._row = 0
        self._start()

    def _start(self) -> None:
        self.size = 0
        """Characters, and 64 for each document, for all texts may be empty."""
        self._rows: list[int] = []
        self._texts: list[bytes] = []
        self._num_chars: list[int] = []
        self._first_chars: list[int] = []
        self._places: list[tuple[int, int]] = []
        self._bad: list[BadDocument] = []

    def add(self, record: _Record, header: list[str]) -> None:
        """Take up the documents of a record."""
        self.size += 64 * len(self._documents) + sum(map(len, record.fields))
        if len(record.fields) != len(header):
            for _ in self._documents:
                self._add_bad(record, *_wrong_record(record, header))
            return
        for indices in self._documents:
            columns = [record.fields[index] for index in indices]
            text = self._separator.join(columns)
            try:
                # One by one, for what is broken in two columns may be whole when joined.
                for column in columns:
                    column.encode()
            except UnicodeEncodeError:
                value = column.encode("utf-8", "surrogateescape")
                self._add_bad(record, "valid UTF-8", f"{invalid_utf8(value)}")
                continue
            self._texts.append(text.encode())
            self._rows.append(self._row)
            self._num_chars.append(len(text))
            self._first_chars.append(len(columns[0]))
            self._places.append((record.line, record.byte_offset))
            self._row += 1

    def _add_bad(self, record: _Record, expected: str, found: str) -> None:
        self._bad.append(
            BadDocument(
                row=self._row,
                line=record.line,
                byte_offset=record.byte_offset,
                expected=expected,
                found=found,
            )
        )
        self._row += 1

    def take(self, config: DocumentsConfig) -> Found:
        """Return what was taken up since the last time."""
        rows = np.array(self._rows, dtype=np.int64)
        num_chars = np.array(self._num_chars, dtype=np.int64)
        spans = None
        if config.prompt is not None:
            spans = completion_spans(np.array(self._first_chars, dtype=np.int64), num_chars)
        batch = Batch(rows, texts_of(self._texts), num_chars, spans)
        found = Found(batch, tuple(self._bad), self._places.__getitem__)
        self._start()
        return found


def _wrong_record(record: _Record, header: list[str]) -> tuple[str, str]:
    if record.error is not None:
        return "a record of well-formed fields", record.error
    expected = f"{len(header)} fields, as in the header"
    return expected, f"{len(record.fields)}: {shortened(record.fields)}"

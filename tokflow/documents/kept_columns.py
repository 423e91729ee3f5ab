"""Columns of raw files that are kept beside the documents, read a second time and by themselves."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tokflow.documents.batch import Batch
from tokflow.documents.config import KEPT, DocumentsConfig, Limit
from tokflow.documents.formats import format_of, reader_of
from tokflow.documents.ranges import OpenRange
from tokflow.documents.source import DocumentSource
from tokflow.errors import ConfigError

READ_BYTES = 250_000
"""Bytes read at once: of a remote file hardly more is fetched than for the text."""


class KeptColumns:
    """The values of `documents.keep_columns`, for batches of documents in their order.

    They are text: a string as it is, any other value as JSON; null where the record has none, and
    counted where it is neither text nor JSON: bytes that are no UTF-8, lone surrogates, NaN,
    infinity, more than `document_bytes`. A column that a file has not is an error; of JSON lines
    one that no record has, where there are ten or more and no limit leaves the file early. Memory
    holds what is read at once of these columns.
    """

    def __init__(self, source: DocumentSource, config: DocumentsConfig) -> None:
        self._source = source
        self._limit = config.limit
        self._config = DocumentsConfig(
            text=config.keep_columns,
            transform=KEPT,  # for which records are read; it is never called
            format=config.format,
            delimiter=config.delimiter,
            quoting=config.quoting,
            encoding=config.encoding,
            # It bounds the rows that a bad record of csv takes, one for each line and column.
            max_rejects=(config.max_rejects + 1) * len(config.keep_columns) - 1,
            limit=Limit(document_bytes=config.limit.document_bytes),
        )
        self._path: Path | None = None
        self._records: Iterator[list[Any]] = iter(())
        self._next = 0
        """Ordinal in its file of the record that comes next."""
        self._record: list[Any] = []
        self.num_lost_values = 0
        """Values of the documents so far that are null since they are neither text nor JSON."""
        self.schema = pa.schema([pa.field(name, pa.string()) for name in config.keep_columns])

    def of(self, batch: Batch) -> pa.Table:
        """Return the values of each document of a batch, one behind those given before."""
        rows = []
        for path, records in self._source.records_of(batch):
            if path != self._path:
                self.check()
                self._path = path
                self._records = _records_of(path, self._config, self._source.open_range())
                self._next = 0
            rows += [self._values_of(record) for record in records.tolist()]
        columns = zip(*rows, strict=True) if rows else ((),) * len(self.schema)
        arrays = [pa.array(column, type=pa.string()) for column in columns]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def check(self) -> None:
        """Read the file of the last batch to its end, unless a limit leaves it before that.

        Raises: ConfigError where none of its records, ten or more, has one of the columns.
        """
        if not self._limit.ends_early:
            for _ in self._records:
                pass

    def _values_of(self, number: int) -> list[str | None]:
        """Return the values of a record: the one that was read last, or a later one."""
        while self._next <= number:
            self._record = next(self._records, [None] * len(self.schema))
            self._next += 1
            if self._next > number:
                self.num_lost_values += self._record.count(_LOST)
        return [None if value is _LOST else value for value in self._record]


def _records_of(
    path: Path, config: DocumentsConfig, within: OpenRange | None
) -> Iterator[list[Any]]:
    """Yield the values of each record of a file, or of a range of it: text, None or _LOST."""
    if format_of(path, config) == "txt":
        expected = "a format with columns, of which documents.keep_columns keeps some"
        raise ConfigError(where=path, expected=expected, found="txt", remedy="remove keep_columns")
    num_each = config.documents_per_record
    for found in reader_of(path, config).read(path, config, READ_BYTES, within):
        values: list[Any] = [_LOST] * found.num_rows
        texts = _texts(found.batch.texts.to_pylist())
        for row, value in zip(found.batch.rows.tolist(), texts, strict=True):
            values[row] = value
        for start in range(0, len(values), num_each):
            yield values[start : start + num_each]


_LOST: Any = object()
"""Stands for a value that is neither text nor JSON."""
_STRINGS = msgspec.json.Decoder(list[str | None])


def _texts(values: Sequence[str]) -> Sequence[Any]:
    """Return values that are given as JSON: in a tenth of the time where all are strings."""
    try:
        texts = _STRINGS.decode(f"[{','.join(values)}]")
        if len(texts) == len(values):
            return texts
    except msgspec.DecodeError:
        pass
    found: list[Any] = []
    for value in values:
        try:
            decoded = msgspec.json.decode(value)
            found.append(decoded if decoded is None or isinstance(decoded, str) else value)
        except (msgspec.DecodeError, RecursionError):
            found.append(_LOST)
    return found

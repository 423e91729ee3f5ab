"""Columns of raw files that are kept beside the documents, read a second time and by themselves."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents.batch import Batch
from tokflow.documents.config import KEPT, DocumentsConfig, Limit
from tokflow.documents.file_formats import format_of, reader_of
from tokflow.documents.file_range import OpenRange
from tokflow.documents.source import DocumentSource
from tokflow.errors import ConfigError

READ_BYTES = 250_000
"""At once: of a file elsewhere no more is fetched than for the text, or little more."""


class KeptColumns:
    """The values of `documents.keep_columns`, for batches of documents in their order.

    They are text: a string as it is, any other value as JSON; null where the record has none, or
    one that cannot be decoded. A column that a file has not is an error; of JSON lines one that no
    record has, where there are ten or more and no limit leaves the file early. Memory holds what is
    read at once of these columns.
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
            max_rejects=config.max_rejects,  # which bounds the rows that a bad record of csv takes
            limit=Limit(document_bytes=config.limit.document_bytes),
        )
        self._path: Path | None = None
        self._records: Iterator[tuple[int, list[str | None]]] = iter(())
        self._record, self._values = _END
        self.schema = kept_schema(config)

    def of(self, batch: Batch) -> pa.Table:
        """Return the values of each document of a batch, one behind those given before."""
        rows = []
        for path, records in self._source.records_of(batch):
            if path != self._path:
                self.check()
                self._path = path
                self._records = _records_of(path, self._config, self._source.open_range())
                self._record, self._values = next(self._records, _END)
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

    def _values_of(self, record: int) -> list[str | None]:
        while self._record < record:
            self._record, self._values = next(self._records, _END)
        return self._values if self._record == record else [None] * len(self.schema)


_END: tuple[int, list[str | None]] = (2**62, [])


def kept_schema(config: DocumentsConfig) -> pa.Schema:
    """Return the schema of the columns that are kept."""
    return pa.schema([pa.field(name, pa.string()) for name in config.keep_columns])


def _records_of(
    path: Path, config: DocumentsConfig, within: OpenRange | None
) -> Iterator[tuple[int, list[str | None]]]:
    """Yield the ordinal of each record that can be read, and its values."""
    if format_of(path, config) == "txt":
        raise ConfigError(
            where=path,
            expected="a format with columns, of which documents.keep_columns keeps some",
            found="txt",
            remedy="remove keep_columns",
        )
    first = 0
    for found in reader_of(path, config)(path, config, READ_BYTES, within):
        rows: npt.NDArray[np.int64] = found.batch.rows + first
        for record, values in zip(rows.tolist(), found.batch.texts.to_pylist(), strict=True):
            yield record, _texts(f"[{values}]")
        first += found.num_rows


_STRINGS = msgspec.json.Decoder(list[str | None])
_ANY = msgspec.json.Decoder(list[msgspec.Raw])


def _texts(values: str) -> list[str | None]:
    """Return the values of a list: in a sixth of the time where all are strings."""
    try:
        return _STRINGS.decode(values)
    except msgspec.DecodeError:
        pass
    try:
        return [_as_text(bytes(value)) for value in _ANY.decode(values)]
    except msgspec.DecodeError:  # a lone surrogate, wherever it is
        return [_as_text(json.dumps(value).encode()) for value in json.loads(values)]


def _as_text(value: bytes) -> str | None:
    if value.startswith(b'"'):
        try:
            return msgspec.json.decode(value, type=str)
        except msgspec.DecodeError:
            return None  # a lone surrogate
    return None if value == b"null" else value.decode()

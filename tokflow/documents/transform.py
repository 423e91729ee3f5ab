"""Documents, or chats, that a user's function makes of records: one, several or none of each; and
columns that are kept beside the documents, which are read a second time and by themselves."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import GeneratorType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents.batch import (
    BadDocument,
    Batch,
    ParsedBatch,
    Problem,
    excerpt,
    num_chars_of,
    too_large,
)
from tokflow.documents.config import KEPT, DocumentsConfig, Limit
from tokflow.documents.formats import format_of, reader_of
from tokflow.documents.ranges import OpenRange
from tokflow.documents.user_function import described, printing_on_stderr
from tokflow.errors import ConfigError
from tokflow.store.tables import texts_of

_STRING_BYTES = 100_000


class Transform:
    """The function of `documents.transform`, called with one record after another.

    A record of which it makes no document takes one row of the file, as a bad one does, and one of
    which it makes several takes as many: with 2, 0 and 1 documents of the records 0, 1 and 2 there
    are the rows 0 and 1, of record 0, a gap at 2, and row 3, of record 2.
    """

    def __init__(self, config: DocumentsConfig) -> None:
        self._user_function = config.user_function
        self._function = self._user_function.load()
        self._columns = config.columns if config.has_records else None
        self._is_record = not isinstance(config.messages or config.text, str)
        self._keys = tuple(config.chat_columns.values())
        self._limit = config.limit
        self._decode = msgspec.json.Decoder().decode

    def __call__(self, found: ParsedBatch) -> ParsedBatch:
        """Return the documents of the records that were found."""
        texts: list[bytes] = []
        counts: list[int] = []
        bad = [of._replace(record=of.row) for of in found.bad]
        records, place = found.batch.rows, found.place
        with printing_on_stderr():
            for record, value in zip(records.tolist(), _strings(found.batch.texts), strict=True):
                made = self._documents(value)
                if isinstance(made, Problem):
                    bad.append(BadDocument(record, place(record), made, record))
                    counts.append(-1)
                    continue
                counts.append(len(made))
                texts += made
        made_of, array = np.array(counts, dtype=np.int64), texts_of(texts)
        num_each = np.maximum(made_of, 0)  # -1 is bad
        widths = np.ones(found.num_rows, dtype=np.int64)
        widths[records] = np.maximum(made_of, 1)
        first_rows = np.cumsum(widths) - widths
        nth = np.arange(len(array)) - np.repeat(np.cumsum(num_each) - num_each, num_each)
        record_of = np.repeat(records, num_each)
        bad.sort(key=lambda of: of.row)
        return ParsedBatch(
            Batch(first_rows[record_of] + nth, array, num_chars_of(array), records=record_of),
            tuple(of._replace(row=int(first_rows[of.row])) for of in bad),
            lambda row: place(int(np.searchsorted(first_rows, row, side="right")) - 1),
            first_rows[records[made_of == 0]],
            found.is_uncut,
        )

    def _documents(self, value: str) -> list[bytes] | Problem:
        """Return what the function makes of one record, as UTF-8: texts, or of each chat the JSON
        of its parts, with commas between them."""
        record: Any = value
        if self._columns is not None:
            try:
                record = dict(zip(self._columns, self._decode(f"[{value}]"), strict=True))
            except (msgspec.DecodeError, RecursionError) as error:  # as of a lone surrogate
                found = f"{excerpt(value)} ({error})"
                return Problem("fields whose JSON can be decoded", found)
            record = record if self._is_record else record[self._columns[0]]
        try:
            result = self._function(record)
            result = list(result) if isinstance(result, GeneratorType) else result
            texts = self._chats(result) if self._keys else self._texts(result)
            if isinstance(texts, Problem):
                return texts
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # also one of an `encode` of the function's own
            return self._problem(described(error, self._user_function.path))
        try:
            made = [str.encode(text) for text in texts]  # whatever `encode` a subclass has
        except UnicodeEncodeError as error:
            return self._problem(f"the lone surrogate {error.object[error.start]!r} in a text")
        too_many = any(len(encoded) > self._limit.document_bytes for encoded in made)
        return too_large(self._limit) if too_many else made

    def _texts(self, result: Any) -> Sequence[str] | Problem:
        texts = [result] if isinstance(result, str) else [] if result is None else result
        if not isinstance(texts, (list, tuple)):
            return self._problem(f"{type(texts).__name__} {excerpt(texts)}")
        for text in texts:
            if not isinstance(text, str):
                return self._problem(f"{type(text).__name__} {excerpt(text)} among several")
        return texts

    def _chats(self, result: Any) -> Sequence[str] | Problem:
        """Return the JSON of chats: of one, as a list of messages or a dictionary of its parts, or
        of several."""
        chats = [result] if isinstance(result, dict) else [] if result is None else result
        if isinstance(chats, (list, tuple)) and chats:
            is_one = all(isinstance(of, dict) and "messages" not in of for of in chats)
            chats = [chats] if is_one else chats
        if not isinstance(chats, (list, tuple)):
            return self._problem(f"{type(chats).__name__} {excerpt(chats)}")
        texts = []
        for chat in chats:
            parts = chat if isinstance(chat, dict) else {"messages": chat}
            is_chat = isinstance(parts.get("messages"), (list, tuple))
            if not is_chat or parts.keys() - {*self._keys}:
                return self._problem(f"{type(chat).__name__} {excerpt(chat)}")
            texts.append(",".join(json.dumps(parts.get(key)) for key in self._keys))
        return texts

    def _problem(self, found: str) -> Problem:
        function = f"{self._user_function.module}:{self._user_function.name}"
        expected, field = "text, several or None", "documents.messages, if it makes chats"
        if self._keys:
            expected, field = "messages, chats or None", "documents.text, if it makes texts"
            expected += f"; of a chat with more than messages, {', '.join(self._keys)}"
        remedy = f"fix the function, or name its columns by {field}"
        return Problem(f"{function} to return {expected}", found, remedy)


def _strings(texts: pa.LargeStringArray) -> Iterator[str]:
    """Yield the texts, as many made strings at once as a core's cache holds: for 40 characters each
    takes 0.04 us, and 0.18 us one by one; all at once is slower for long ones."""
    num_each = 1 + len(texts) * _STRING_BYTES // max(1, texts.nbytes)
    for start in range(0, len(texts), num_each):
        yield from texts.slice(start, num_each).to_pylist()


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

    def __init__(
        self,
        records_of: Callable[[Batch], Iterator[tuple[Path, npt.NDArray[np.int64]]]],
        open_range: Callable[[], OpenRange | None],
        config: DocumentsConfig,
    ) -> None:
        """Take the functions of these names of a `DocumentSource`."""
        self._records_of, self._open_range = records_of, open_range
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
        for path, records in self._records_of(batch):
            if path != self._path:
                self.check()
                self._path = path
                self._records = _records_of(path, self._config, self._open_range())
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

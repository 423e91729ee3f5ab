"""Documents that a user's function makes of records: one, several or none of each."""

from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokflow.documents.batch import Batch
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.parsed import BadDocument, ParsedBatch, Problem, ends_of, excerpt, too_large
from tokflow.documents.user_function import described
from tokflow.store.arrow import texts_of


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
        self._limit = config.limit
        self._decode = msgspec.json.Decoder().decode

    def __call__(self, found: ParsedBatch) -> ParsedBatch:
        """Return the documents of the records that were found."""
        texts: list[bytes] = []
        num_chars: list[int] = []
        counts: list[int] = []
        bad = [of._replace(record=of.row) for of in found.bad]
        records = found.batch.rows
        for record, data in zip(records.tolist(), _pieces(found.batch), strict=True):
            made = self._documents(data)
            if isinstance(made, Problem):
                bad.append(BadDocument(record, found.place(record), made, record))
                counts.append(-1)
                continue
            counts.append(len(made))
            for text, encoded in made:
                texts.append(encoded)
                num_chars.append(len(text))
        batch = Batch(records, texts_of(texts), np.array(num_chars, dtype=np.int64))
        return _numbered(batch, np.array(counts, dtype=np.int64), bad, found.num_rows)

    def _documents(self, data: memoryview) -> list[tuple[str, bytes]] | Problem:
        """Return what the function makes of one record: texts, with their UTF-8."""
        try:
            result = self._function(self._argument(data))
            if isinstance(result, GeneratorType):
                result = list(result)
        except _UndecodableError as error:
            return Problem("fields whose JSON can be decoded", str(error))
        except MemoryError:
            raise
        except Exception as error:
            return self._problem(described(error, self._user_function.path))
        if result is None:
            return []
        made = []
        for text in result if isinstance(result, (list, tuple)) else [result]:
            if not isinstance(text, str):
                within = " among several" if isinstance(result, (list, tuple)) else ""
                return self._problem(f"{type(text).__name__} {excerpt(text)}{within}")
            try:
                encoded = text.encode()
            except UnicodeEncodeError as error:
                return self._problem(f"the lone surrogate {text[error.start]!r} in a text")
            if len(encoded) > self._limit.document_bytes:
                return too_large(self._limit)
            made.append((text, encoded))
        return made

    def _argument(self, data: memoryview) -> Any:
        """Return a text, or a record as a dictionary."""
        if self._columns is None:
            return str(data, "utf-8")
        try:
            values = self._decode(b"".join((b"[", data, b"]")))
        except (msgspec.DecodeError, RecursionError) as error:
            raise _UndecodableError(f"{excerpt(data.tobytes())} ({error})") from error
        return dict(zip(self._columns, values, strict=True))

    def _problem(self, found: str) -> Problem:
        function = f"{self._user_function.module}:{self._user_function.name}"
        return Problem(f"{function} to return text, several or None", found, "mend the function")


class _UndecodableError(Exception):
    """A record that JSON allows and Python's strings do not, such as a lone surrogate."""


def transform_of(config: DocumentsConfig) -> Callable[[ParsedBatch], ParsedBatch] | None:
    """Return what makes documents of records; None where they are the documents.

    Raises: ConfigError where the function cannot be had.
    """
    return None if config.transform is None else Transform(config)


def _pieces(batch: Batch) -> Iterator[memoryview]:
    """Yield the bytes of each text."""
    texts = batch.texts
    if len(texts) == 0:
        return
    first = int(np.frombuffer(texts.buffers()[1], np.int64, 1, 8 * texts.offset)[0])
    data = memoryview(texts.buffers()[2] or b"")[first:]
    start = 0
    for stop in ends_of(texts).tolist():
        yield data[start:stop]
        start = stop


def _numbered(
    batch: Batch, counts: npt.NDArray[np.int64], bad: list[BadDocument], num_records: int
) -> ParsedBatch:
    """Return the documents with their rows. `batch` has texts and, for rows, the records that were
    transformed, of which `counts` has how many documents each became; -1 is bad."""
    records, num_each = batch.rows, np.maximum(counts, 0)
    widths = np.ones(num_records, dtype=np.int64)
    widths[records] = np.maximum(counts, 1)
    first_rows = np.cumsum(widths) - widths
    nth = np.arange(len(batch.texts)) - np.repeat(np.cumsum(num_each) - num_each, num_each)
    of_documents = np.repeat(records, num_each)
    return ParsedBatch(
        Batch(first_rows[of_documents] + nth, batch.texts, batch.num_chars, records=of_documents),
        tuple(
            of._replace(row=int(first_rows[of.row])) for of in sorted(bad, key=lambda of: of.row)
        ),
        left_out=first_rows[records[counts == 0]],
    )

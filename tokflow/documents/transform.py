"""Documents, or chats, that a user's function makes of records: one, several or none of each."""

import json
from collections.abc import Iterator, Sequence
from types import GeneratorType
from typing import Any

import msgspec
import numpy as np
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
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.user_function import described, printing_on_stderr
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

r"""Documents in a field of JSON lines: one object per line, lines that end at \n.

A UTF-8 byte order mark at the start is skipped. Lines of nothing but white space are skipped
too; they count as lines but take no ordinal. Of a key that comes twice the last value counts,
as with Python's json. Only what is needed is decoded: the strings of other fields may hold
invalid UTF-8 and lone surrogates. NaN and Infinity are no JSON.
"""

import difflib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokflow.documents.batch import (
    BadDocument,
    Batch,
    ParsedBatch,
    Problem,
    bad_document,
    shortened,
)
from tokflow.documents.compression import read_blocks
from tokflow.documents.config import DocumentsConfig, correct_column
from tokflow.documents.lines import Pieces, cut, without_mark
from tokflow.documents.text_arrays import completion_spans, invalid_utf8, too_large_alone
from tokflow.errors import ConfigError
from tokflow.store.arrow import texts_of

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read(path: Path, config: DocumentsConfig, batch_bytes: int) -> Iterator[ParsedBatch]:
    """Yield the documents of about `batch_bytes` of the file at once.

    With several columns each line is decoded once for each.
    """
    fields = [_field(text, config) for text in config.columns]
    byte_offset, blocks = without_mark(read_blocks(path, block_bytes=batch_bytes))
    max_bytes = config.limit.document_bytes
    row = 0
    for lines in cut(blocks, b"\n", max_bytes=max_bytes, byte_offset=byte_offset):
        found = (
            _too_large(lines, fields, row, config)
            if lines.is_too_large
            else _whole(lines, fields, row, config) or _line_by_line(lines, fields, row, config)
        )
        row += len(found.batch.rows) + len(found.bad)
        yield found


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field is read from a line: `get(decode(line))`."""

    keys: tuple[str, ...]
    decode: Callable[[bytes], Any]
    get: Callable[[Any], Any]
    """Gives the text; of messages their JSON, as bytes."""
    is_json: bool
    """Whether the field holds messages, whatever JSON they are."""
    remedy: str
    """What to do where a record lacks the field."""


def _field(text: str, config: DocumentsConfig) -> _Field:
    keys = tuple(text.split("."))
    type_: type = str if config.messages is None else msgspec.Raw
    try:
        for key in reversed(keys):
            type_ = msgspec.defstruct("Record", [("f", type_)], rename={"f": key}, gc=False)
    except ValueError as error:
        raise ConfigError(
            where=f"documents.{_name_in_config(text, config)}",
            expected="a field without quotes, backslashes and control characters",
            found=repr(text),
            remedy="rename the field in the raw files",
        ) from error
    get = attrgetter(".".join("f" for _ in keys))
    remedy = correct_column(config, unit="field")
    is_json = config.messages is not None
    return _Field(keys, msgspec.json.Decoder(type_).decode, get, is_json, remedy)


def _name_in_config(text: str, config: DocumentsConfig) -> str:
    names = ("messages", "prompt", "completion")
    return next((name for name in names if getattr(config, name) == text), "text")


def _too_large(
    lines: Pieces, fields: list[_Field], row: int, config: DocumentsConfig
) -> ParsedBatch:
    num_documents = 1 if config.separator_of_columns is not None else len(fields)
    place = (lines.first + 1, lines.byte_offset)
    return too_large_alone(range(row, row + num_documents), config.limit, place)


def _whole(
    lines: Pieces, fields: list[_Field], row: int, config: DocumentsConfig
) -> ParsedBatch | None:
    """Return the documents of the lines, or None if one of them is blank or bad."""
    try:
        columns = [list(map(field.get, map(field.decode, lines.pieces))) for field in fields]
    except _UNDECODABLE:
        return None
    num_records = len(lines.pieces)
    num_documents = (
        num_records if config.separator_of_columns is not None else (num_records * len(fields))
    )

    def place(index: int) -> tuple[int, int]:
        line = index * num_records // num_documents
        before = sum(map(len, lines.pieces[:line])) + line
        return lines.first + line + 1, lines.byte_offset + before

    rows = np.arange(row, row + num_documents, dtype=np.int64)
    return ParsedBatch(_batch(columns, rows, config), place=place)


def _line_by_line(
    lines: Pieces, fields: list[_Field], row: int, config: DocumentsConfig
) -> ParsedBatch:
    is_joined = config.separator_of_columns is not None
    columns: list[list[Any]] = [[] for _ in (fields if is_joined else fields[:1])]
    rows, places, bad = [], [], []
    byte_offset = lines.byte_offset
    for number, line in enumerate(lines.pieces, start=lines.first + 1):
        # A document is made of all fields, or there is one for each.
        of_documents = [fields] if is_joined else [[field] for field in fields]
        for of_document in of_documents if line.strip(b" \t\r") else ():
            values, problem = _values(line, of_document, row, number, byte_offset)
            if problem is not None:
                bad.append(problem)
            else:
                for column, value in zip(columns, values, strict=True):
                    column.append(value)
                rows.append(row)
                places.append((number, byte_offset))
            row += 1
        byte_offset += len(line) + 1
    batch = _batch(columns, np.array(rows, dtype=np.int64), config)
    return ParsedBatch(batch, tuple(bad), places.__getitem__)


def _values(
    line: bytes, fields: list[_Field], row: int, number: int, byte_offset: int
) -> tuple[list[Any], BadDocument | None]:
    """Return what the fields of a line hold, or why it is no document."""
    values = []
    for field in fields:
        try:
            values.append(field.get(field.decode(line)))
        except _UNDECODABLE as error:
            value, problem = _second_look(line, field, error)
            if problem is not None:
                return [], bad_document(problem, row=row, line=number, byte_offset=byte_offset)
            values.append(value)
    return values, None


def _batch(columns: list[list[Any]], rows: npt.NDArray[np.int64], config: DocumentsConfig) -> Batch:
    """Return the documents of the columns: joined, or side by side."""
    if config.messages is not None:
        texts = texts_of([bytes(raw) for raw in columns[0]])
        return Batch(rows, texts, np.zeros(len(rows), dtype=np.int64))
    strings: list[str] = columns[0]
    if (separator := config.separator_of_columns) is not None:
        strings = [separator.join(record) for record in zip(*columns, strict=True)]
    elif len(columns) > 1:
        strings = [text for record in zip(*columns, strict=True) for text in record]
    num_chars = _lengths(strings)
    spans = completion_spans(_lengths(columns[0]), num_chars) if config.is_chat else None
    return Batch(rows, texts_of([text.encode() for text in strings]), num_chars, spans)


def _lengths(strings: list[str]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))


def _second_look(line: bytes, field: _Field, error: Exception) -> tuple[Any, Problem | None]:
    """Return what a field holds by Python's json, or why it holds no text.

    It takes what msgspec does not: a value that another of the same key replaces, and lone
    surrogates in other fields.
    """
    try:
        # A byte that is no UTF-8 becomes a lone surrogate, which spoils its own string only.
        text = line.decode("utf-8", "surrogateescape")
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        return None, ("JSON", f"too many nested values in {shortened(line)}", None)
    except ValueError:
        return None, ("a JSON object", f"{shortened(line)} ({error})", None)
    for depth, key in enumerate(field.keys):
        if not isinstance(value, dict) or key not in value:
            return None, _missing_key(value, field, depth)
        value = value[key]
    if field.is_json:
        return json.dumps(value).encode(), None
    if not isinstance(value, str):
        expected = f"a string in {'.'.join(field.keys)!r}"
        return None, (expected, _described(value), None)
    try:
        value.encode()
    except UnicodeEncodeError as surrogate:
        if (invalid := invalid_utf8(line)) is not None:
            return None, ("valid UTF-8", invalid, None)
        found = f"the lone surrogate {value[surrogate.start]!r} in {shortened(line)}"
        return None, ("text", found, None)
    return value, None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _missing_key(value: Any, field: _Field, depth: int) -> Problem:
    """Return what is wrong with a value that has no key at that depth."""
    key = field.keys[depth]
    inside = f" in {'.'.join(field.keys[:depth])!r}" if depth else ""
    if not isinstance(value, dict):
        return f"a JSON object{inside}", _described(value), None
    nearest = difflib.get_close_matches(key, value, n=1)
    found = f"the keys {', '.join(map(shortened, value))}" if value else "no keys"
    found += f" (nearest: {nearest[0]!r})" if nearest else ""
    return f"the key {key!r}{inside}", found, field.remedy


def _described(value: object) -> str:
    """Return a JSON value with its type, as `the number 5`."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return f"the {names.get(type(value), 'object')} {shortened(value)}"

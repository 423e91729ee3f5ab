r"""Documents in a field of JSON lines: one object per line, lines that end at \n; or of the
elements of one array that is the whole file.

A UTF-8 byte order mark at the start is skipped. Lines of nothing but white space are skipped
too; they count as lines but take no ordinal. Of a key that comes twice the last value counts,
as with Python's json. Only what is needed is decoded: the strings of other fields may hold
invalid UTF-8 and lone surrogates. NaN and Infinity are no JSON.
"""

import difflib
import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa

from tokflow.documents.batch import (
    ParsedBatch,
    Place,
    Problem,
    all_bad,
    are_messages,
    excerpt,
    invalid_text,
    parse,
    too_large,
)
from tokflow.documents.config import DocumentsConfig, correct_column, name_messages
from tokflow.documents.decoding import read_blocks
from tokflow.documents.formats import RECORDS, Columns
from tokflow.documents.formats.json_array import cut_records
from tokflow.documents.formats.txt import LineBatch, count_before
from tokflow.documents.ranges import Before, OpenRange, Range, read_text, text_ranges
from tokflow.errors import ConfigError
from tokflow.store.tables import texts_of

MANY_RECORDS = 10
"""Records of which none has a field, so that it is the config that is wrong. Fewer may be bad."""

FEW_RECORDS = 8
"""Records of a block that are freed once they are decoded."""

LOOKED_AT_BYTES = 1_000_000
"""Most bytes of a record whose fields are checked; larger ones are passed over."""

_NAME = re.compile(r'[^."\\\x00-\x1f]+')
"""A field that a config can name."""
_BLANK = b" \t\r"
_START_BYTES = 64 * 1024
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read(
    path: Path, config: DocumentsConfig, batch_bytes: int, within: OpenRange | None = None
) -> Iterator[ParsedBatch]:
    """Yield the documents of about `batch_bytes` of the file at once.

    With several columns each line is decoded once for each. Where no record of a range has a field,
    the file is read from its beginning until one has it, but for behind so many bad documents that
    they are an error of their own.
    """
    fields = [_field(text, config) for text in config.columns]
    yield from _documents(path, config, batch_bytes, fields, within)
    if within is not None and any(field.lack and not field.is_found for field in fields):
        of_range, num_bad = fields, 0
        fields = [_field(text, config) for text in config.columns]
        for found in _documents(path, config, batch_bytes, fields, None):
            num_bad += len(found.bad)
            pairs = zip(fields, of_range, strict=True)
            is_known = all(one.is_found or of.is_found or not of.lack for one, of in pairs)
            if is_known or num_bad > config.max_rejects:
                return
    for field in fields:
        if field.lack and not field.is_found and field.num_lacking >= MANY_RECORDS:
            raise ConfigError(
                where=path,
                expected=f"records with {field.lack.expected}",
                found=f"none; the first has {field.lack.found}",
                remedy=correct_column(config, field.name, unit="field"),
            )


def ranges(path: Path, config: DocumentsConfig, range_bytes: int) -> tuple[Range, ...]:
    """Return ranges of lines; none where the file is one JSON array."""
    start = next(read_blocks(path, block_bytes=_START_BYTES), b"")
    is_array = start.removeprefix(BOM_UTF8).lstrip().startswith(b"[")
    return () if is_array else text_ranges(path, range_bytes)


def before(path: Path, config: DocumentsConfig, within: Range) -> Before:
    """Return what stands before a range of lines."""
    return count_before(path, config, within, blank=_BLANK)


def columns_of(path: Path, config: DocumentsConfig) -> Columns:
    """Return the fields of the first records; their names without those that no config can name."""
    records = [of for of in islice(_records(path, config), RECORDS) if isinstance(of, dict)]
    names = dict.fromkeys(name for of in records for name, value in of.items() if value is not None)
    fields = dict.fromkeys(chain.from_iterable(_leaves(record, "") for record in records))
    texts, chats = ([name for name, is_chat in fields if is_chat == of] for of in (False, True))
    return Columns([name for name in names if _NAME.fullmatch(name)], texts, chats)


def check_columns(path: Path, config: DocumentsConfig) -> None:
    """Raise ConfigError if the first records are not bad, and none has a field, or all have chats
    as text."""
    needed = [text for text in config.columns if text not in config.optional_columns]
    if config.on_bad_document != "error" or not needed:
        return
    most = min(LOOKED_AT_BYTES, config.limit.document_bytes)
    limit = config.limit.model_copy(update={"document_bytes": most})
    records = islice(_records(path, config.model_copy(update={"limit": limit})), RECORDS)
    objects = [record for record in records if isinstance(record, dict)]
    for text in needed if objects else ():
        values = objects
        for key in text.split("."):
            values = [of[key] for of in values if isinstance(of, dict) and key in of]
        is_text = not config.is_chat
        if values and not (is_text and all(map(are_messages, values))):
            continue
        fields = ", ".join(map(repr, dict.fromkeys(key for record in objects for key in record)))
        expected = f"records with {'text' if is_text else 'a field'} in {text!r}"
        found = "chats" if values else f"the fields {fields}"
        remedy = (
            name_messages(config, text) if values else correct_column(config, text, unit="field")
        )
        raise ConfigError(where=path, expected=expected, found=found, remedy=remedy)


def _records(path: Path, config: DocumentsConfig) -> Iterator[Any]:
    """Yield what each line or element holds; None where that is no JSON."""
    _, blocks = read_text(path, None, block_bytes=_START_BYTES)
    max_bytes = config.limit.document_bytes
    for batch in cut_records(blocks, path, max_bytes=max_bytes):
        for line in batch.lines:
            try:
                yield json.loads(line.decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError):
                yield None  # an error that the reader raises


def _leaves(value: Any, name: str) -> Iterator[tuple[str, bool]]:
    """Yield the fields that hold strings, or chats; a key with a dot cannot be named."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if "." not in key:
                yield from _leaves(inner, f"{name}.{key}" if name else key)
    elif name and (isinstance(value, str) or are_messages(value)):
        yield name, not isinstance(value, str)


def _documents(
    path: Path,
    config: DocumentsConfig,
    batch_bytes: int,
    fields: list["_Field"],
    within: OpenRange | None,
) -> Iterator[ParsedBatch]:
    """Yield the documents, and note in `fields` which of them the records have."""
    num_each = config.documents_per_record
    byte_offset, blocks = read_text(path, within, block_bytes=batch_bytes)
    max_bytes = config.limit.document_bytes

    def parse_lines(batch: LineBatch) -> ParsedBatch:
        if batch.is_too_large:
            return all_bad(too_large(config.limit), [batch.place(0)] * num_each)
        place: Callable[[int], Place] = batch.place
        problems, columns, is_known = dict[int, Problem](), list[list[Any]](), False
        with suppress(*_UNDECODABLE):
            columns = [list(map(field.get, map(field.decode, batch.lines))) for field in fields]
            for field, column in zip(fields, columns, strict=True):
                field.is_found = field.is_found or not field.is_optional or any(column)
            is_known = all(field.is_found for field in fields)
        if not is_known:
            columns, place, problems = _line_by_line(batch, fields, num_each)
        elif len(batch.lines) < FEW_RECORDS:  # which may be large
            batch.release()
        num_chars, encode = None, cast(Callable[[Any], bytes], str.encode)
        if config.has_records:
            encode = lambda of: bytes(of) or b"null"  # noqa: E731
        else:
            num_chars = [np.fromiter(map(len, column), np.int64, len(column)) for column in columns]
        arrays = [texts_of(list(map(encode, column))).view(pa.large_binary()) for column in columns]
        return parse(arrays, config, place=place, problems=problems, num_chars=num_chars)

    batches = cut_records(blocks, path, max_bytes=max_bytes, byte_offset=byte_offset, within=within)
    yield from map(parse_lines, batches)  # which keeps none while the next is cut


@dataclass(slots=True)
class _Field:
    """A field of the records, decoded by itself."""

    name: str
    """Its keys, joined by dots."""
    config: DocumentsConfig
    decode: Callable[[bytes], Any]
    get: Callable[[Any], Any]
    """Gives the text of what was decoded, or its JSON as bytes."""
    is_json: bool
    """True if the field may hold any JSON: of a chat, or of what a transform gets."""
    is_optional: bool
    """True if a record may lack it; what `get` gives is empty then."""
    is_found: bool = False
    """True once a record had it, whatever its value, and of a field that a file may lack."""
    lack: Problem | None = None
    """The problem of the first record that lacks it."""
    num_lacking: int = 0
    """Records that lack it."""


def _field(text: str, config: DocumentsConfig) -> _Field:
    keys = text.split(".")
    is_optional, is_json = text in config.optional_columns, config.has_records
    type_: type = msgspec.Raw if is_json else str
    default: Callable[[], Any] = msgspec.Raw
    try:
        for key in reversed(keys):
            field: Any = ("f", type_)
            if is_optional:
                field = ("f", type_, msgspec.field(default_factory=default))
            type_ = default = msgspec.defstruct("Record", [field], rename={"f": key}, gc=False)
    except ValueError as error:
        raise ConfigError(
            where=f"documents.{config.field_of(text)}",
            expected="a field without quotes, backslashes and control characters",
            found=repr(text),
            remedy="rename the field in the raw files",
        ) from error
    get = attrgetter(".".join("f" for _ in keys))
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(type_).decode
    is_spare = text in config.spare_columns
    return _Field(text, config, decode, get, is_json, is_optional, is_found=is_spare)


def _line_by_line(
    batch: LineBatch, fields: list[_Field], num_each: int
) -> tuple[list[list[Any]], Callable[[int], Place], dict[int, Problem]]:
    """Return the columns of lines, some of which are blank or bad, and the place and the problem of
    each record."""
    lines = [line.removesuffix(b"\n") for line in batch.lines]
    shown = [index for index, line in enumerate(lines) if line.strip(_BLANK)]
    columns: list[list[Any]] = [[] for _ in fields]
    problems: dict[int, Problem] = {}
    for record, index in enumerate(shown):
        for nth, field in enumerate(fields):
            text = _text(lines[index], field)
            if isinstance(text, Problem):
                problems.setdefault(record * num_each + nth % num_each, text)
                text = b"" if field.is_json else ""
            columns[nth].append(text)
    return columns, lambda record: batch.place(shown[record]), problems


def _text(line: bytes, field: _Field) -> Any | Problem:
    """Return what a field of a line holds, or why that is no text.

    A second look by Python's json takes what msgspec does not: a value that another of the same
    key replaces, and lone surrogates in other fields.
    """
    error: Exception | None = None
    try:
        found = field.get(field.decode(line))
    except _UNDECODABLE as first_error:
        error = first_error
    else:
        if found or not field.is_optional:
            field.is_found = True
            return found
    try:
        # A byte that is no UTF-8 becomes a lone surrogate, which spoils its own string only.
        text = line.decode("utf-8", "surrogateescape")
        value = json.loads(text, parse_constant=int)  # which raises: NaN and Infinity are no JSON
    except RecursionError:
        return Problem("JSON", f"too many nested values in {excerpt(line)}")
    except ValueError:
        return Problem("a JSON object", f"{excerpt(line)} ({error})")
    for depth, key in enumerate(field.name.split(".")):
        if not isinstance(value, dict) or key not in value:
            problem = _missing_key(value, field, depth)
            may_lack = isinstance(value, dict) or (value is None and depth > 0)
            return b"" if field.is_optional and may_lack else problem
        value = value[key]
    field.is_found = True
    if field.is_json:
        return json.dumps(value).encode()
    if not isinstance(value, str):
        remedy = name_messages(field.config, field.name) if are_messages(value) else None
        return Problem(f"a string in {field.name!r}", _described(value), remedy)
    try:
        value.encode()
    except UnicodeEncodeError as surrogate:
        found = f"the lone surrogate {value[surrogate.start]!r} in {excerpt(line)}"
        return invalid_text(line) or Problem("text", found)
    return value


def _missing_key(value: Any, field: _Field, depth: int) -> Problem:
    """Return what is wrong with a value that has no key at that depth."""
    keys = field.name.split(".")
    key, inside = keys[depth], f" in {'.'.join(keys[:depth])!r}" if depth else ""
    if not isinstance(value, dict):
        return Problem(f"a JSON object{inside}", _described(value))
    nearest = difflib.get_close_matches(key, value, n=1)
    found = f"the keys {', '.join(map(excerpt, value))}" if value else "no keys"
    found += f" (nearest: {nearest[0]!r})" if nearest else ""
    remedy = correct_column(field.config, field.name, unit="field")
    problem = Problem(f"the key {key!r}{inside}", found, remedy)
    field.lack = field.lack or problem
    field.num_lacking += 1
    return problem


def _described(value: object) -> str:
    """Return a JSON value with its type, as `the number 5`."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return f"the {names.get(type(value), 'object')} {excerpt(value)}"

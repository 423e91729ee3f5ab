"""Columns, delimiter and encoding of a raw file, guessed where the config does not name them."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from tokflow.documents.batch import are_messages
from tokflow.documents.config import DocumentsConfig, correct_column, name_messages
from tokflow.documents.decoding import marked_encoding, read_blocks
from tokflow.documents.file_formats import format_of
from tokflow.documents.ranges import read_text
from tokflow.errors import ConfigError, RawFileError

RECORDS = 100
"""Records of JSON lines that are looked at: others may have other fields."""

LOOKED_AT_BYTES = 1_000_000
"""Most bytes of a record whose fields are checked; larger ones are passed over."""

_BLOCK_BYTES = 64 * 1024


_START_BYTES = 1_000_000
_QUOTED_FIELD = re.compile(rb'(?m)(?:^|\t)"(?=[^"]*(?:""|\t))(?:[^"\n]|"")*"(?=\t|\r?$)')
"""A field of tsv whose quotes hold a tab or quotes, as those have that write it as csv."""


TextColumns: TypeAlias = tuple[list[str], list[str]]
"""Columns or fields in the order of the file, nested ones by their dotted path: those of strings,
of which some may not be readable as `documents.text`, and those of chats, lists of messages, which
`documents.messages` reads."""


def text_columns(path: Path, config: DocumentsConfig) -> TextColumns:
    """Return the columns of strings and of chats; none of txt, which has no columns.

    Raises: ConfigError for an unknown format; RawFileError.
    """
    format_ = format_of(path, config)
    if format_ == "txt":
        return [], []
    if format_ == "jsonl":
        leaves = (_leaves(record, "") for record in islice(_records(path, config), RECORDS))
        fields = dict.fromkeys(chain.from_iterable(leaves))
        texts = [name for name, is_chat in fields if not is_chat]
        return texts, [name for name, is_chat in fields if is_chat]
    if format_ in ("csv", "tsv"):
        from tokflow.documents.formats.delimited import read_header

        return read_header(path, config), []
    from tokflow.documents.formats.arrow import list_text_columns

    return list_text_columns(path, is_parquet=format_ == "parquet")


def check_columns(path: Path, config: DocumentsConfig) -> None:
    """Make sure that a file has the columns that are read, by its schema, its header or its first
    records: what is damaged, and records that are bad, are left to the reader.

    Raises: ConfigError.
    """
    format_ = format_of(path, config)
    with suppress(RawFileError, OSError):
        if format_ == "jsonl" and config.on_bad_document == "error" and not config.has_records:
            most = min(LOOKED_AT_BYTES, config.limit.document_bytes)
            limit = config.limit.model_copy(update={"document_bytes": most})
            records = _records(path, config.model_copy(update={"limit": limit}))
            _check_fields([*islice(records, RECORDS)], path, config)
        elif format_ in ("csv", "tsv"):
            from tokflow.documents.formats.delimited import check_header

            check_header(path, config)
        elif format_ in ("parquet", "arrow"):
            from tokflow.documents.formats.arrow import check_schema

            check_schema(path, config, is_parquet=format_ == "parquet")


def _check_fields(records: list[Any], path: Path, config: DocumentsConfig) -> None:
    """Raise ConfigError if there are records, and none has a field, or all have chats as text."""
    objects = [record for record in records if isinstance(record, dict)]
    for text in config.columns if objects else ():
        values = [value for record in objects for value in _values_at(record, text.split("."))]
        is_text = not config.is_chat
        if values and not (is_text and all(map(are_messages, values))):
            continue
        fields = ", ".join(map(repr, dict.fromkeys(key for record in objects for key in record)))
        raise ConfigError(
            where=path,
            expected=f"records with {'text' if is_text else 'a field'} in {text!r}",
            found="chats" if values else f"the fields {fields}",
            remedy=name_messages(text) if values else correct_column(config, unit="field"),
        )


def _values_at(value: Any, keys: list[str]) -> list[Any]:
    """Return the value at a path of keys in a record; none where it is not there."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return []
        value = value[key]
    return [value]


def likely_fields(path: Path, config: DocumentsConfig) -> dict[str, Any]:
    """Return fields of `documents` that the start of a csv, tsv or txt file asks for: delimiter,
    quoting and encoding, where they are others than those that are taken without.

    Text is taken for cp1252 that is no UTF-8, has no character of several bytes that UTF-8 has, and
    no byte that cp1252 lacks. Raises: ConfigError for an unknown format; RawFileError.
    """
    format_ = format_of(path, config)
    if format_ not in ("csv", "tsv", "txt"):
        return {}
    blocks = read_blocks(path, block_bytes=_START_BYTES)
    start, more = next(blocks, b""), next(blocks, b"")[:3]
    found: dict[str, Any] = {}
    marked, _ = marked_encoding(start)
    if marked in ("utf-16-le", "utf-16-be"):
        found["encoding"] = "utf-16"
    elif _is_cp1252(start + more, is_all=not more):
        found["encoding"] = "cp1252"
    if format_ != "txt":
        from tokflow.documents.formats.delimited import find_delimiter

        delimiter = find_delimiter(path, config.model_copy(update=found))
        found |= {"delimiter": delimiter} if delimiter else {}
    if format_ == "tsv" and _QUOTED_FIELD.search(start):
        found["quoting"] = "double"
    return found


def _is_cp1252(start: bytes, *, is_all: bool) -> bool:
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and not is_all:
            return False
        has_others = not start.decode("utf-8", "ignore").isascii()
        return not has_others and not re.search(rb"[\0\x81\x8d\x8f\x90\x9d]", start)
    return False


def _records(path: Path, config: DocumentsConfig) -> Iterator[Any]:
    """Yield what each line or element holds; None where that is no JSON."""
    from tokflow.documents.formats.json_array import cut_records

    _, blocks = read_text(path, None, block_bytes=_BLOCK_BYTES)
    max_bytes = config.limit.document_bytes
    for batch in cut_records(blocks, path, max_bytes=max_bytes, byte_offset=0, is_start=True):
        for line in batch.lines:
            try:
                yield json.loads(line.decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError):
                yield None  # the reader says what is wrong with it


def _leaves(value: Any, name: str) -> Iterator[tuple[str, bool]]:
    """Yield the fields that hold strings, or chats; a key with a dot cannot be named."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if "." not in key:
                yield from _leaves(inner, f"{name}.{key}" if name else key)
    elif name and (isinstance(value, str) or are_messages(value)):
        yield name, not isinstance(value, str)

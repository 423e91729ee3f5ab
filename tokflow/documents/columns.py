"""Documents in the columns of Arrow tables: what parquet and arrow files have in common."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tokflow.documents.config import DocumentsConfig, correct_column
from tokflow.documents.parsed import ParsedBatch, parse
from tokflow.errors import ConfigError, RawFileError
from tokflow.store.arrow import texts_of, to_arrow


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of text: a top-level column, and the way down if that is a struct."""

    name: str
    fields: tuple[str, ...] = ()


def find_columns(schema: pa.Schema, config: DocumentsConfig, path: Path) -> list[TextColumn]:
    """Return where the columns of `config` are.

    Raises:
        ConfigError: there is no such column, there are two, or it does not hold what it must.
    """
    return [_find_column(schema, column, config, path) for column in config.columns]


def _find_column(schema: pa.Schema, text: str, config: DocumentsConfig, path: Path) -> TextColumn:
    """Return the top-level column of that name, or else a nested one."""
    name, *fields = [text] if text in schema.names else text.split(".")
    check_single(name, schema.names, path)
    type_: Any = pa.struct(list(schema))
    for field in (name, *fields):
        if not pa.types.is_struct(type_) or type_.get_field_index(field) < 0:
            raise missing_column_error(path, text, _leaves(schema), config)
        type_ = type_.field(field).type
    if not _is_text(type_) and not (config.messages is not None and _is_messages(type_)):
        lists = "lists of structs, " if config.messages is not None else ""
        expected = f"a column {text!r} of {lists}strings or UTF-8 bytes"
        raise _column_error(path, expected, f"{type_}", config)
    return TextColumn(name, tuple(fields))


def check_single(name: str, names: list[str], path: Path) -> None:
    """Raise ConfigError if several columns have that name."""
    if (number := names.count(name)) > 1:
        raise ConfigError(
            where=path,
            expected=f"one column {name!r}",
            found=f"{number} of them",
            remedy="rename all but one of them in the file",
        )


def missing_column_error(
    path: Path, text: str, names: list[str], config: DocumentsConfig
) -> ConfigError:
    """Return the error that says which columns there are."""
    nearest = difflib.get_close_matches(text, names, n=1)
    found = f"the columns {', '.join(map(repr, names[:50]))}"
    found += f" and {len(names) - 50} more" if len(names) > 50 else ""
    found += f" (nearest: {nearest[0]!r})" if nearest else ""
    return _column_error(path, f"a column {text!r}", found, config)


def _column_error(path: Path, expected: str, found: str, config: DocumentsConfig) -> ConfigError:
    remedy = correct_column(config)
    return ConfigError(where=path, expected=expected, found=found, remedy=remedy)


def _leaves(fields: Iterable[pa.Field], prefix: str = "") -> list[str]:
    leaves: list[str] = []
    for field in fields:
        if pa.types.is_struct(field.type):
            leaves += _leaves(list(field.type), f"{prefix}{field.name}.")
        else:
            leaves.append(f"{prefix}{field.name}")
    return leaves


def _is_text(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _is_text(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return _is_text(type_.value_type)
    return type_ in (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
    )


def _is_messages(type_: pa.DataType) -> bool:
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_)
    return bool(is_list and pa.types.is_struct(type_.value_type))


def documents_in(
    record_batches: Iterable[pa.RecordBatch],
    columns: list[TextColumn],
    config: DocumentsConfig,
    path: Path,
) -> Iterator[ParsedBatch]:
    """Yield the documents of each record batch."""
    for record_batch in record_batches:
        yield parse([_bytes_of(record_batch, column, path) for column in columns], config)


def undamaged(batches: Iterator[pa.RecordBatch], path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the record batches; one that cannot be read is a RawFileError."""
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise damaged_error(path, found=str(error)) from error
        yield batch


def damaged_error(path: Path, *, found: str, expected: str = "an undamaged file") -> RawFileError:
    """Return the error of a file that is not what its format says."""
    remedy = f"download or make the file again, if it is {path.suffix} at all"
    return RawFileError(where=path, expected=expected, found=found, remedy=remedy)


def _bytes_of(record_batch: pa.RecordBatch, column: TextColumn, path: Path) -> pa.LargeBinaryArray:
    """Return the column's bytes, whether UTF-8 or not; strings are not copied."""
    import pyarrow.compute as pc

    array = record_batch.column(record_batch.schema.get_field_index(column.name))
    for field in column.fields:
        array = pc.struct_field(array, field)
    while pa.types.is_dictionary(array.type) or isinstance(array.type, pa.BaseExtensionType):
        array = array.storage if hasattr(array, "storage") else array.dictionary_decode()
    if _is_messages(array.type):
        return _json_of(array)
    array = array.cast(pa.large_binary())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:  # offsets that lead outside the data
        raise damaged_error(path, found=str(error)) from error
    return array


def _json_of(array: pa.ListArray) -> pa.LargeBinaryArray:
    """Return each list of messages as JSON, without the fields that are null.

    A struct has the same fields in every message, so null is how it says that one is not there.
    """
    import pyarrow.compute as pc

    values = [None if value is None else _without_nulls(value) for value in array.to_pylist()]
    texts = [b"" if value is None else msgspec.json.encode(value) for value in values]
    is_null = np.array([value is None for value in values], dtype=bool)
    made = texts_of(texts).view(pa.large_binary())
    return pc.if_else(to_arrow(is_null), None, made) if is_null.any() else made


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value

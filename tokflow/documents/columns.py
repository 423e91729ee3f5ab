"""Documents in the columns of Arrow tables: what parquet and arrow files have in common."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokflow.documents.contract import Found
from tokflow.documents.texts import found_in
from tokflow.errors import ConfigError, RawFileError, four_parts


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text: a top-level column, and the way down if that is a struct."""

    name: str
    fields: tuple[str, ...] = ()


def find_column(schema: pa.Schema, text: str, path: Path) -> Column:
    """Return where `text` leads: the top-level column of that name, or else a nested one.

    Raises:
        ConfigError: there is no such column, there are two, or it does not hold text.
    """
    name, *fields = [text] if text in schema.names else text.split(".")
    if schema.names.count(name) > 1:
        raise _column_error(path, f"one column {name!r}", f"{schema.names.count(name)} of them")
    type_: Any = pa.struct(list(schema))
    for field in (name, *fields):
        if not pa.types.is_struct(type_) or type_.get_field_index(field) < 0:
            raise missing_column_error(path, text, _leaves(schema))
        type_ = type_.field(field).type
    if not _is_text(type_):
        raise _column_error(path, f"a column {text!r} of strings or UTF-8 bytes", f"{type_}")
    return Column(name, tuple(fields))


def missing_column_error(path: Path, text: str, names: list[str]) -> ConfigError:
    """Return the error that says which columns there are."""
    nearest = difflib.get_close_matches(text, names, n=1)
    found = f"the columns {', '.join(map(repr, names[:50]))}"
    found += f" and {len(names) - 50} more" if len(names) > 50 else ""
    found += f" (nearest: {nearest[0]!r})" if nearest else ""
    return _column_error(path, f"a column {text!r}", found)


def _column_error(path: Path, expected: str, found: str) -> ConfigError:
    remedy = "set documents.text to the column that holds the text"
    return ConfigError(four_parts(where=path, expected=expected, found=found, remedy=remedy))


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


def documents_in(
    record_batches: Iterable[pa.RecordBatch], columns: list[Column], path: Path
) -> Iterator[Found]:
    """Yield the documents of each record batch, those of one record side by side."""
    row = 0
    for record_batch in record_batches:
        arrays = [_bytes_of(record_batch, column, path) for column in columns]
        if len(arrays) > 1:
            arrays = [_by_record(arrays)]
        yield found_in(arrays[0], first_row=row, place=_no_place)
        row += len(arrays[0])


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
    return RawFileError(four_parts(where=path, expected=expected, found=found, remedy=remedy))


def _by_record(arrays: list[pa.LargeBinaryArray]) -> pa.LargeBinaryArray:
    """Return the first element of each array, then the second of each, and so on."""
    indices = np.arange(sum(map(len, arrays)), dtype=np.int64)
    indices = indices.reshape(len(arrays), -1).T.ravel()
    in_arrow = pa.Int64Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)])
    return pa.concat_arrays(arrays).take(in_arrow)


def _no_place(index: int) -> tuple[None, None]:
    return None, None


def _bytes_of(record_batch: pa.RecordBatch, column: Column, path: Path) -> pa.LargeBinaryArray:
    """Return the column's bytes, whether UTF-8 or not; strings are not copied."""
    import pyarrow.compute as pc

    array = record_batch.column(record_batch.schema.get_field_index(column.name))
    for field in column.fields:
        array = pc.struct_field(array, field)
    while pa.types.is_dictionary(array.type) or isinstance(array.type, pa.BaseExtensionType):
        array = array.storage if hasattr(array, "storage") else array.dictionary_decode()
    array = array.cast(pa.large_binary())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:  # offsets that lead outside the data
        raise damaged_error(path, found=str(error)) from error
    return array

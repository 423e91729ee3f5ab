"""Documents in columns of Arrow IPC files (.arrow, .feather) and streams (Hugging Face datasets),
and what parquet has in common with them.

A record batch of Arrow is in memory as a whole while its documents are read, of a file only the
columns that hold them. It is not memory-mapped, for where a mapped file is cut short meanwhile, a
signal ends the process without a word.
"""

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tokflow.documents.batch import ParsedBatch, has_nan, parse, value_json
from tokflow.documents.config import KEPT, DocumentsConfig, correct_column, name_messages
from tokflow.documents.decoding import START_BYTES, kind_of
from tokflow.documents.formats import Columns
from tokflow.documents.ranges import Before, OpenRange, Range, gathered
from tokflow.errors import BadContentError, ConfigError, TokflowError
from tokflow.raw.remote_file import RemoteFile, stop_reading_ahead
from tokflow.store.tables import texts_of

_FILE_MAGIC = b"ARROW1"
_OWN_KINDS = ("a parquet", "an Arrow")
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_ROWS_OF_BATCH = 4096
"""Rows looked at at once; a record batch may have millions."""


def read(
    path: Path, config: DocumentsConfig, batch_bytes: int, within: OpenRange | None = None
) -> Iterator[ParsedBatch]:
    """Yield the documents of the file, up to `_ROWS_OF_BATCH` records at once."""
    is_stream = is_arrow_stream(path)
    if is_stream and within is not None:
        raise ValueError(f"{path}: expected an Arrow file to read a range of, found a stream")
    with open_source(path) as source:
        open_ = pa.ipc.open_stream if is_stream else pa.ipc.open_file
        with undamaged(path):
            schema = open_(source).schema
        columns = find_columns(schema, config, path)
        fields = sorted({schema.get_field_index(column[0]) for column in columns if column})
        source.seek(0)
        with undamaged(path):
            reader = open_(source, options=pa.ipc.IpcReadOptions(included_fields=fields))
        found: Iterable[pa.RecordBatch] = reader
        if not is_stream:
            every = range(reader.num_record_batches)
            kept = every if within is None else every[within.range.start : within.range.stop]
            found = map(reader.get_batch, kept)
            if isinstance(source, RemoteSource) and within is not None:
                share = within.range.stop / max(1, len(every))
                source.stop_reading_ahead(int(share * path.stat().st_size))
        yield from documents_in(_small_batches(found, path, batch_bytes), columns, config, path)
        if is_stream:
            source.seek(source.tell() - len(_STREAM_END))
            if (end := source.read(len(_STREAM_END))) != _STREAM_END:
                raise damaged_error(path, found=f"{end!r}", expected="the mark that ends a stream")


def ranges(path: Path, config: DocumentsConfig, range_bytes: int) -> tuple[Range, ...]:
    """Return record batches gathered as if they were of one size.

    Only the batches themselves hold their sizes. A stream has no index of its batches.
    """
    if is_arrow_stream(path):
        return ()
    with undamaged(path), open_source(path) as source:
        num_batches = pa.ipc.open_file(source).num_record_batches
        num_bytes = source.size()
    return gathered([num_bytes // max(1, num_batches)] * num_batches, range_bytes)


def before(path: Path, config: DocumentsConfig, within: Range) -> Before:
    """Return the rows of the record batches before the range, of which one column is read."""
    with undamaged(path), open_source(path) as source:
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0]))
        num_rows = sum(reader.get_batch(index).num_rows for index in range(within.start))
    return Before(lines=0, rows=num_rows * config.documents_per_record)


def columns_of(path: Path, config: DocumentsConfig) -> Columns:
    """Return the columns of the schema."""
    return columns_in(_read_schema(path))


def check_columns(path: Path, config: DocumentsConfig) -> None:
    """Raise ConfigError unless the file has the columns of `config`."""
    find_columns(_read_schema(path), config, path)


def _read_schema(path: Path) -> pa.Schema:
    open_ = pa.ipc.open_stream if is_arrow_stream(path) else pa.ipc.open_file
    with undamaged(path), open_source(path) as source:
        return open_(source).schema


def columns_in(schema: pa.Schema) -> Columns:
    """Return the columns of a schema."""
    leaves = _leaves(schema)
    texts = [name for name, type_ in leaves if _is_text(type_)]
    chats = [name for name, type_ in leaves if _is_list_of_structs(type_)]
    return Columns(list(schema.names), texts, chats)


def open_source(path: Path) -> pa.NativeFile:
    """Open a file for Arrow; one that is fetched as it is read through Python."""
    if isinstance(path, RemoteFile):
        return RemoteSource(path.open(), mode="r")
    return pa.OSFile(str(path))


class RemoteSource(pa.PythonFile):  # type: ignore[misc]
    """A remote file, for Arrow."""

    def __init__(self, file: Any, mode: str) -> None:  # the class above has taken both already
        self._file = file

    def stop_reading_ahead(self, stop: int) -> None:
        """Let nothing behind `stop` be fetched ahead."""
        stop_reading_ahead(self._file, stop)


def is_arrow_stream(path: Path) -> bool:
    """Return whether a file of Arrow is one stream of record batches, without their places."""
    with path.open("rb") as file:
        return file.read(len(_FILE_MAGIC)) != _FILE_MAGIC


def _small_batches(
    batches: Iterable[pa.RecordBatch], path: Path, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    with undamaged(path):
        for batch in batches:
            fitting = 1 + batch_bytes * len(batch) // max(1, batch.nbytes)
            for start in range(0, len(batch), at_once := min(fitting, _ROWS_OF_BATCH)):
                yield batch.slice(start, at_once)


ColumnPath: TypeAlias = tuple[str, ...]
"""A column: a top-level column, and the way down if that is a struct; empty where the file lacks
one that it may lack."""


def find_columns(schema: pa.Schema, config: DocumentsConfig, path: Path) -> list[ColumnPath]:
    """Return where the columns of `config` are: the top-level column of that name, or else a nested
    one.

    Raises:
        ConfigError: there is no such column, there are two, or it does not hold what it must.
    """
    found: list[ColumnPath] = []
    for text in config.columns:
        if text in config.spare_columns and text not in schema.names:
            found.append(())
            continue
        column = (text,) if text in schema.names else tuple(text.split("."))
        check_single(column[0], schema.names, path)
        type_: Any = pa.struct(list(schema))
        for field in column:
            if not pa.types.is_struct(type_) or type_.get_field_index(field) < 0:
                names = [leaf for leaf, _ in _leaves(schema)]
                raise missing_column_error(path, text, names, config)
            type_ = type_.field(field).type
        is_chat = config.field_of(text) in ("messages", "prompt", "completion")
        is_chat = is_chat and config.is_rendered and config.transform is None
        is_any = config.has_records and (not is_chat or _is_list_of_structs(type_))
        if not _is_text(type_) and not is_any:
            lists = "lists of structs, " if is_chat else ""
            find_remedy = name_messages if _is_list_of_structs(type_) else correct_column
            expected = f"a column {text!r} of {lists}strings or UTF-8 bytes"
            remedy = find_remedy(config, text)
            raise ConfigError(where=path, expected=expected, found=f"{type_}", remedy=remedy)
        found.append(column)
    return found


def check_single(name: str, names: list[str], path: Path) -> None:
    """Raise ConfigError if several columns have that name."""
    if (number := names.count(name)) > 1:
        expected = f"one column {name!r}"
        remedy = "rename all but one of them in the file"
        raise ConfigError(where=path, expected=expected, found=f"{number} of them", remedy=remedy)


def missing_column_error(
    path: Path, text: str, names: list[str], config: DocumentsConfig
) -> ConfigError:
    """Return the error of a missing column, which lists those that there are."""
    nearest = difflib.get_close_matches(text, names, n=1)
    found = f"the columns {', '.join(map(repr, names[:50]))}"
    found += f" and {len(names) - 50} more" if len(names) > 50 else ""
    found += f" (nearest: {nearest[0]!r})" if nearest else ""
    remedy = correct_column(config, text)
    return ConfigError(where=path, expected=f"a column {text!r}", found=found, remedy=remedy)


def _leaves(fields: Iterable[pa.Field], prefix: str = "") -> list[tuple[str, pa.DataType]]:
    """Return the dotted path of each column that is no struct, and what it holds."""
    leaves: list[tuple[str, pa.DataType]] = []
    for field in fields:
        if pa.types.is_struct(field.type):
            leaves += _leaves(list(field.type), f"{prefix}{field.name}.")
        else:
            leaves.append((f"{prefix}{field.name}", field.type))
    return leaves


def _is_text(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _is_text(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return _is_text(type_.value_type)
    texts = (pa.string, pa.large_string, pa.string_view, pa.binary, pa.large_binary, pa.binary_view)
    return type_ in [text() for text in texts]


def _is_list_of_structs(type_: pa.DataType) -> bool:
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_)
    return bool(is_list and pa.types.is_struct(type_.value_type))


def documents_in(
    record_batches: Iterable[pa.RecordBatch],
    columns: list[ColumnPath],
    config: DocumentsConfig,
    path: Path,
) -> Iterator[ParsedBatch]:
    """Yield the documents of each record batch."""
    read = _values_of if config.has_records else _bytes_of
    if config.transform == KEPT:
        read = partial(_values_of, null_for_nan=False)
    elif config.is_rendered:
        read = partial(_values_of, has_nulls=False)
    for record_batch in record_batches:
        arrays = [read(record_batch, column, path) for column in columns]
        del record_batch
        yield parse(arrays, config)
        del arrays


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Turn Arrow's exceptions about a file into BadContentError."""
    try:
        yield
    except (TokflowError, MemoryError):
        raise
    except pa.ArrowNotImplementedError as error:
        expected = f"what pyarrow {pa.__version__} can read"
        found = str(error)
        remedy = "write the file again with other types or encodings"
        raise BadContentError(where=path, expected=expected, found=found, remedy=remedy) from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # of the disk
        raise damaged_error(path, found=str(error)) from error


def damaged_error(
    path: Path, *, found: str, expected: str = "an undamaged file"
) -> BadContentError:
    """Return the error of a file that is damaged, or of another kind than its format."""
    try:
        with path.open("rb") as file:
            kind = kind_of(file.read(START_BYTES))
    except OSError:
        kind = None
    if kind is not None and not kind[0].startswith(_OWN_KINDS):
        found, remedy = kind
        expected = f"a file of the format that {path.suffix} stands for"
    else:
        remedy = f"download or make the file again, if it is {path.suffix} at all"
    return BadContentError(where=path, expected=expected, found=found, remedy=remedy)


def _bytes_of(record_batch: pa.RecordBatch, column: ColumnPath, path: Path) -> pa.LargeBinaryArray:
    """Return the column's bytes, whether UTF-8 or not; strings are not copied."""
    array = _array_of(record_batch, column).cast(pa.large_binary())
    with undamaged(path):
        array.validate(full=True)  # offsets that lead outside the data
    return array


def _array_of(record_batch: pa.RecordBatch, column: ColumnPath) -> pa.Array:
    """Return a column as it is, without dictionaries and extension types."""
    import pyarrow.compute as pc

    if not column:
        return pa.nulls(len(record_batch), pa.string())
    array = record_batch.column(record_batch.schema.get_field_index(column[0]))
    for field in column[1:]:
        array = pc.struct_field(array, field)
    while pa.types.is_dictionary(array.type) or isinstance(array.type, pa.BaseExtensionType):
        array = array.storage if hasattr(array, "storage") else array.dictionary_decode()
    return array


def _values_of(
    record_batch: pa.RecordBatch,
    column: ColumnPath,
    path: Path,
    *,
    null_for_nan: bool = True,
    has_nulls: bool = True,
) -> pa.LargeBinaryArray:
    """Return the JSON of each value of a column, whatever its type; bytes are text.

    NaN and infinity are null, or else the value that holds one is b"NaN", which is no JSON. With
    `has_nulls` false the null fields of structs are left out: a struct has the same fields in all
    values of a column, and null stands for one that a value lacks.
    """
    array = _array_of(record_batch, column)
    if _is_text(array.type):
        array = _bytes_of(record_batch, column, path)
    with undamaged(path):
        array.validate(full=True)
    has_nested_bytes = pa.types.is_nested(array.type) and "binary" in str(array.type)
    found = array.to_pylist()
    if not has_nulls and pa.types.is_nested(array.type):
        found = list(map(_without_nulls, found))
    values = [value_json(of, has_nested_bytes=has_nested_bytes) for of in found]
    if not null_for_nan and any(name in str(array.type) for name in ("float", "double")):
        pairs = zip(found, values, strict=True)
        values = [b"NaN" if has_nan(of) else json for of, json in pairs]
    return texts_of(values).view(pa.large_binary())


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value

"""Tables that tokflow keeps for itself, of documents, spans and segments; and numbers and texts
between numpy and Arrow, without importing pandas.

pyarrow's own ways (`pa.array`, `to_numpy`, `pq.read_table`, a comparison with a Python number)
import pandas first where it is installed: 0.3 s of a run that takes 2 s (pyarrow 26.0.1). The
functions here share the buffers they are given.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.store.manifest import FileEntry
from tokflow.store.streams import HashedWriter

Columns = dict[str, npt.NDArray[Any]]
"""Columns of one table by name, all of one length."""


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the arguments of pyarrow's writer for a table of offsets and few names.

    Whole numbers are kept as differences: on 10 million segments that took a third of the time
    of pyarrow's default, a dictionary of values that hardly repeat, and half the space.
    """
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    return {
        "compression": "zstd",
        "use_dictionary": [f.name for f in schema if pa.types.is_string(f.type)],
        "column_encoding": dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
    }


ROWS_PER_GROUP = 65_536


class TableWriter(AbstractContextManager["TableWriter"]):
    """Writes a parquet file, hashed, in row groups that do not depend on how its rows come.

    Every group but the last has `rows_per_group` rows, and those that `end_group` ends earlier.
    A table without rows is one group without rows.
    """

    def __init__(self, path: Path, schema: pa.Schema, rows_per_group: int = ROWS_PER_GROUP) -> None:
        import pyarrow.parquet as pq  # late: it imports ssl and every file system

        self._file = HashedWriter(path)
        self._writer = pq.ParquetWriter(self._file, schema, **parquet_options(schema))
        self._schema = schema
        self._rows_per_group = rows_per_group
        self._tables: list[pa.Table] = []
        self._num_rows = 0
        self._has_group = False

    def __exit__(self, *error: object) -> None:
        with self._file, self._writer:
            if error[0] is None and (self._num_rows or not self._has_group):
                self._write_group(self._joined())

    def entry(self) -> FileEntry:
        """Return the size and sha256 of the file, which is closed."""
        return self._file.entry()

    def add(self, table: pa.Table) -> None:
        """Add the next rows."""
        self._tables.append(table)
        self._num_rows += len(table)
        if len(self._tables) > TABLES_WAITING or self._num_rows >= self._rows_per_group:
            waiting = self._joined()
            while len(waiting) >= self._rows_per_group:
                self._write_group(waiting.slice(0, self._rows_per_group))
                waiting = waiting.slice(self._rows_per_group)
            self._tables, self._num_rows = [waiting], len(waiting)

    def end_group(self) -> None:
        """Start a new row group with the next row."""
        if self._num_rows:
            self._write_group(self._joined())
            self._tables, self._num_rows = [], 0

    def _joined(self) -> pa.Table:
        if not self._tables:
            return self._schema.empty_table()
        # Of one chunk, for chunks end pages.
        return pa.concat_tables(self._tables).combine_chunks()

    def _write_group(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=self._rows_per_group)
        self._has_group = True


def write_table(path: Path, table: pa.Table) -> FileEntry:
    """Write a whole table; return the size and sha256 of the file."""
    with TableWriter(path, table.schema) as writer:
        writer.add(table)
    return writer.entry()


TABLES_WAITING = 1_000
"""Small tables kept before they are joined: each takes a kilobyte, however few its rows."""


def read_part(
    path: Path,
    part: str,
    columns: Sequence[str],
    *,
    sequences: tuple[int, int] | None = None,
) -> Columns:
    """Return columns of the rows with this `part`, in order; see `read_parts`."""
    return read_parts(path, [part], columns, sequences=sequences)[part]


def read_parts(
    path: Path,
    parts: Sequence[str],
    columns: Sequence[str],
    *,
    sequences: tuple[int, int] | None = None,
) -> dict[str, Columns]:
    """Return columns of the rows of each of some parts, in order; arrays may be read-only.

    `sequences`: only rows whose `sequence` is from the first to before the second. Row groups
    in which there is none, by their statistics, are not read.
    """
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    read = ["part", *columns, *(["sequence"] if sequences and "sequence" not in columns else [])]
    wanted: dict[str, tuple[Any, Any]] = {"part": (min(parts), max(parts))}
    if sequences:
        wanted["sequence"] = (sequences[0], sequences[1] - 1)
    found: dict[str, list[Columns]] = {part: [] for part in parts}
    with pq.ParquetFile(parquet_source(path), read_dictionary=["part"]) as file:
        schema, groups = file.schema_arrow, range(file.num_row_groups)
        for group in groups:
            if len(groups) == 1 or _may_hold(file.metadata.row_group(group), wanted):
                is_large = file.metadata.num_rows > MANY_ROWS
                table = file.read_row_group(group, columns=read, use_threads=is_large)
                codes = table["part"].unify_dictionaries().combine_chunks()
                names, indices = codes.dictionary.to_pylist(), to_numpy(codes.indices)
                values = {of: to_numpy(table[of]) for of in table.schema.names if of != "part"}
                for part in parts:
                    is_wanted = indices == (names.index(part) if part in names else -1)
                    if sequences:
                        sequence = values["sequence"]
                        is_wanted &= (sequence >= sequences[0]) & (sequence < sequences[1])
                    rows = slice(None) if is_wanted.all() else is_wanted
                    found[part].append({name: values[name][rows] for name in columns})
    return {
        part: some[0] if len(some) == 1 else _joined(some, columns, schema)
        for part, some in found.items()
    }


def _joined(found: Sequence[Columns], columns: Sequence[str], schema: pa.Schema) -> Columns:
    types = {name: schema.field(name).type.to_pandas_dtype() for name in columns}
    return {
        name: np.concatenate([np.zeros(0, dtype=types[name]), *(some[name] for some in found)])
        for name in columns
    }


def _may_hold(group: Any, wanted: dict[str, tuple[Any, Any]]) -> bool:
    for ordinal in range(group.num_columns):
        column = group.column(ordinal)
        statistics = column.statistics
        if column.path_in_schema in wanted and statistics is not None and statistics.has_min_max:
            low, high = wanted[column.path_in_schema]
            if statistics.max < low or statistics.min > high:
                return False
    return True


NUMPY_TYPES = {
    pa.from_numpy_dtype(np.dtype(name)): np.dtype(name)
    for name in (
        "bool",
        "float32",
        "float64",
        *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
    )
}
"""Numpy's types by Arrow's that `to_numpy` takes; pyarrow 22 imports pandas to convert one."""


def to_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Return a one-dimensional array of numbers or truth values as Arrow's."""
    if values.dtype == bool:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. It is a copy where there are several chunks, of which
    `combine_chunks` makes one of a single chunk, too."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def to_numpy(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return a column without nulls, of numbers or truth values, as numpy's; read-only."""
    if isinstance(column, pa.ChunkedArray):
        chunks = [to_numpy(chunk) for chunk in column.chunks]
        if len(chunks) == 1:
            return chunks[0]
        return np.concatenate([np.zeros(0, dtype=NUMPY_TYPES[column.type]), *chunks])
    data = column.buffers()[1]
    if data is None:  # no rows at all
        return np.zeros(0, dtype=NUMPY_TYPES[column.type])
    if pa.types.is_boolean(column.type):
        bits = np.frombuffer(data, dtype=np.uint8)
        unpacked = np.unpackbits(bits, count=column.offset + len(column), bitorder="little")
        return unpacked[column.offset :].astype(bool)
    dtype = NUMPY_TYPES[column.type]
    start = column.offset * dtype.itemsize
    return np.frombuffer(data, dtype=dtype, count=len(column), offset=start)


def offsets_of(counts: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return where things of these sizes begin, end to end, and the last one ends."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def map_numbers(
    path: Path, dtype: npt.DTypeLike, *, first_byte: int = 0, num: int = -1
) -> npt.NDArray[Any]:
    """Return numbers of a file from a byte on, all or `num` of them, memory-mapped and read-only.

    numpy's own map holds the file open, and a process may have 1,024 open; this one does not.
    """
    return np.frombuffer(map_file(path), dtype, count=num, offset=first_byte)


def map_file(path: Path) -> pa.Buffer:
    """Return the bytes of a file, memory-mapped and read-only, none of which is read yet.

    pyarrow has what it is asked for read ahead, up to 8 MB: here that is one byte, whose address
    leads to the others.
    """
    with pa.memory_map(str(path)) as file:
        first, size = file.read_buffer(1), file.size()
        return pa.foreign_buffer(first.address, size, base=first) if size else first


@contextmanager
def looked_into(path: Path) -> Iterator[pa.Buffer]:
    """Yield the bytes of a file as `map_file` does; what is looked at meanwhile is read without its
    surroundings, of which a disk may read 8 MB ahead."""
    mapped = map_file(path)
    if (advise := madvise()) is None or not mapped.size:
        yield mapped
        return
    advise(mapped.address, mapped.size, mmap.MADV_RANDOM)
    try:
        yield mapped
    finally:
        advise(mapped.address, mapped.size, mmap.MADV_NORMAL)


@cache
def madvise() -> Callable[[int, int, int], int] | None:
    """Return the system's function; None where there is none. Python's own takes no map that
    another library made."""
    if not hasattr(mmap, "MADV_RANDOM"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return advise


def to_texts(strings: Sequence[str]) -> pa.LargeStringArray:
    """Return strings as the array that engines take."""
    return texts_of([string.encode() for string in strings])


def texts_of(parts: Sequence[bytes | memoryview]) -> pa.LargeStringArray:
    """Return the array of the parts, whose bytes are not checked.

    Encoding each text and joining is the fastest of the ways tried: 64 MB of code take 0.03 s;
    `pa.array` of the str objects takes 0.07 s, joining the str objects first 0.05 s.
    """
    offsets = offsets_of(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)))
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return pa.LargeStringArray.from_buffers(len(parts), pa.py_buffer(offsets), pa.py_buffer(data))


def text_buffers(
    texts: pa.LargeStringArray | pa.LargeBinaryArray,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the byte offsets (num_texts + 1,) and the bytes they point into, without a copy.

    The first offset need not be 0: a slice shares the buffers of the whole.
    """
    _, offsets, data = texts.buffers()
    start, stop = texts.offset, texts.offset + len(texts) + 1
    if offsets is None or offsets.size == 0:
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    bytes_ = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
    return np.frombuffer(offsets, dtype=np.int64)[start:stop], bytes_


def repeated(text: str, times: int) -> pa.StringArray:
    """Return an array that holds one text `times` times."""
    data = text.encode()
    offsets = np.arange(0, (times + 1) * len(data), len(data) or 1, dtype=np.int32)[: times + 1]
    if not data:
        offsets = np.zeros(times + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(times, pa.py_buffer(offsets), pa.py_buffer(data * times))


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a parquet file, or some columns of it, in memory."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    with pq.ParquetFile(parquet_source(path)) as file:
        names = None if columns is None else list(columns)
        return file.read(columns=names, use_threads=file.metadata.num_rows > MANY_ROWS)


def read_first(path: Path, columns: Sequence[str], num: int) -> pa.Table:
    """Return columns of the first `num` rows of a parquet file; row groups behind them are not
    read."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    with pq.ParquetFile(parquet_source(path)) as file:
        groups: list[int] = []
        left = num
        while left > 0 and len(groups) < file.num_row_groups:
            left -= file.metadata.row_group(len(groups)).num_rows
            groups.append(len(groups))
        return file.read_row_groups(groups, columns=list(columns)).slice(0, num)


SMALL_BYTES = 1_000_000
"""Size up to which a parquet file is taken into memory."""

MANY_ROWS = 10_000
"""Rows of a parquet file from which on several threads save time."""


def parquet_source(path: Path) -> Path | pa.BufferReader:
    """Return what pyarrow reads a parquet file from: a small one is taken into memory, which
    spares the threads that it reads files with, and with them a third of the time."""
    return path if path.stat().st_size > SMALL_BYTES else pa.BufferReader(path.read_bytes())


def make_table(columns: Mapping[str, npt.NDArray[Any] | pa.Array], schema: pa.Schema) -> pa.Table:
    """Return a table of `schema` from a column for each of its fields."""
    arrays = [
        column if isinstance(column := columns[field.name], pa.Array) else to_arrow(column)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)

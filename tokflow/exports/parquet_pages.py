"""A writer of parquet files whose columns are lists of integers, or text.

Row groups, of one page after another for each column; all columns end their pages at the same rows.
pyarrow's own writer takes 18 ns for each value of a list, which is made into levels, chunked and
encoded one value at a time (`benchmarks/LOG.md`); numpy and the codec take 2 to 6.

    "PAR1" | pages of each column of each row group | offset indexes | footer | its length | "PAR1"
    page   header | repetition levels, definition levels, values: PLAIN, compressed together

A page ends behind a row whose hash says so, so that equal rows make equal pages in a file that is
made again with others before them.

Source: apache/parquet-format at 2.11.0: parquet.thrift, Encodings.md (PLAIN, RLE), LogicalTypes.md
(LIST); apache/thrift, doc/specs/thrift-compact-protocol.md.
"""

import base64
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokflow.exports.token_files import open_hashed
from tokflow.store.hashed_writer import HashedWriter
from tokflow.store.tables import to_numpy

PAGE_VALUES = 2**15, 2**17
"""Values of the first column between which a page ends: 128 to 512 kB of them."""

CODECS = {"none": 0, "snappy": 1, "zstd": 6}

BYTE, I32, I64, TEXT, LIST, STRUCT = 3, 5, 6, 8, 9, 12
"""Types of thrift's compact protocol."""

REQUIRED, OPTIONAL, REPEATED = 0, 1, 2

PLAIN, RLE = 0, 3

LEVELS_OF_LIST = 3
"""Definition level of a value of a list; that of an empty list is 1, for neither a list nor a value
is required to be there, as other writers have it."""

Fields = Iterable[tuple[int, int, Any]]
"""Fields of a struct: number, type and value; of a list its values' type and the values."""


def thrift(fields: Fields) -> bytes:
    """Return a struct in thrift's compact protocol; a field whose value is None is left out."""
    found, before = bytearray(), 0
    for number, kind, value in fields:
        if value is not None:
            # True is a type of its own, and has no value.
            found.append((number - before) << 4 | (1 if value is True else kind))
            found += b"" if value is True else _value(kind, value)
            before = number
    return bytes(found) + b"\0"


def _value(kind: int, value: Any) -> bytes:
    if kind == STRUCT:
        return thrift(value)
    if kind == TEXT:
        return _varint(len(value)) + bytes(value)
    if kind == BYTE:
        return bytes([value])
    if kind != LIST:
        return _varint(value << 1)  # zigzag, of numbers from 0
    of, values = value
    head = bytes([min(len(values), 15) << 4 | of]) + (_varint(len(values)) * (len(values) > 14))
    return head + b"".join(_value(of, one) for one in values)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


@contextmanager
def parquet_file(path: Path, schema: pa.Schema, compression: str) -> Iterator["ParquetFile"]:
    """Open a new parquet file, which is whole once the block ends."""
    with open_hashed(path) as file:
        file.write(b"PAR1")
        written = ParquetFile(file, schema, compression)
        yield written
        written.finish()


class ParquetFile:
    """A new parquet file; a table written is a row group."""

    def __init__(self, file: HashedWriter, schema: pa.Schema, compression: str) -> None:
        self._file, self._schema, self._codec = file, schema, CODECS[compression]
        self._compress = None if compression == "none" else pa.Codec(compression).compress
        self._groups: list[tuple[int, list[tuple[list[Fields], int, Fields]]]] = []
        """Rows of each group; of each column its pages, their bytes, and its metadata."""

    def write_table(self, table: pa.Table) -> None:
        """Write a row group."""
        columns = [column.combine_chunks() for column in table.columns]
        edges, chunks = _page_edges(columns[0]), []
        for field, column in zip(self._schema, columns, strict=True):
            first = self._file.tell() if len(table) else 0
            pages, sums = list[Fields](), np.zeros(3, dtype=np.int64)
            for start, stop in pairwise(edges):
                num_values, page = _page(column.slice(start, stop - start))
                packed = page if self._compress is None else self._compress(page, asbytes=True)
                data = [(1, I32, num_values), (2, I32, PLAIN), (3, I32, RLE), (4, I32, RLE)]
                sizes = [(1, I32, 0), (2, I32, len(page)), (3, I32, len(packed))]
                header = thrift([*sizes, (5, STRUCT, data)])
                size = len(header) + len(packed)
                pages.append([(1, I64, self._file.tell()), (2, I32, size), (3, I64, start)])
                sums += num_values, len(header) + len(page), size
                self._file.write(header)
                self._file.write(packed)
            is_text = pa.types.is_string(field.type)
            path = [field.name] if is_text else [field.name, "list", "element"]
            metadata: Fields = [
                (1, I32, 6 if is_text else 1),  # BYTE_ARRAY, INT32
                (2, LIST, (I32, [PLAIN, RLE])),
                (3, LIST, (TEXT, [name.encode() for name in path])),
                (4, I32, self._codec),
                *((number, I64, num) for number, num in enumerate(sums.tolist(), 5)),
                (9, I64, first),
            ]
            chunks.append((pages, int(sums[1]), metadata))
        self._groups.append((len(table), chunks))

    def finish(self) -> None:
        """Write the offset indexes and the footer."""
        groups = []
        for num_rows, chunks in self._groups:
            columns = []
            for pages, _, metadata in chunks:
                index, at = thrift([(1, LIST, (STRUCT, pages))]), self._file.tell()
                self._file.write(index)
                place = [(4, I64, at), (5, I32, len(index))]
                columns.append([(2, I64, 0), (3, STRUCT, metadata), *place])
            num_bytes = sum(num for _, num, _ in chunks)
            groups.append([(1, LIST, (STRUCT, columns)), (2, I64, num_bytes), (3, I64, num_rows)])
        # Readers of Arrow take the types from there, such as int8.
        arrow = base64.b64encode(self._schema.serialize().to_pybytes())
        elements = [element for field in self._schema for element in _elements(field)]
        root = [(3, I32, REQUIRED), (4, TEXT, b"schema"), (5, I32, len(self._schema))]
        footer = thrift(
            [
                (1, I32, 2),
                (2, LIST, (STRUCT, [root, *elements])),
                (3, I64, sum(num_rows for num_rows, _ in self._groups)),
                (4, LIST, (STRUCT, groups)),
                (5, LIST, (STRUCT, [[(1, TEXT, b"ARROW:schema"), (2, TEXT, arrow)]])),
                (6, TEXT, b"tokflow"),
            ]
        )
        self._file.write(footer + len(footer).to_bytes(4, "little") + b"PAR1")


def _elements(field: pa.Field) -> Iterator[Fields]:
    """Yield the elements of a column in the schema: of a list its group, the one that is repeated,
    and its values."""
    name = field.name.encode()
    if pa.types.is_string(field.type):
        yield [
            (1, I32, 6),
            (3, I32, OPTIONAL),
            (4, TEXT, name),
            (6, I32, 0),  # UTF8, the same as the logical type
            (10, STRUCT, [(1, STRUCT, [])]),
        ]
        return
    is_list = [(6, I32, 3), (10, STRUCT, [(3, STRUCT, [])])]
    yield [(3, I32, OPTIONAL), (4, TEXT, name), (5, I32, 1), *is_list]
    yield [(3, I32, REPEATED), (4, TEXT, b"list"), (5, I32, 1)]
    own = [(1, I32, 1), (3, I32, OPTIONAL), (4, TEXT, b"element")]
    if field.type.value_type == pa.int8():  # INT_8; signed, 8 bits
        own += [(6, I32, 15), (10, STRUCT, [(10, STRUCT, [(1, BYTE, 8), (2, BYTE, True)])])]
    yield own


def _page_edges(column: pa.Array) -> list[int]:
    """Return the first row of each page, and the number of rows: a page ends behind the row whose
    values say so, with PAGE_VALUES of them."""
    fewest, most = PAGE_VALUES
    offsets = to_numpy(column.offsets).tolist()
    values, edges = to_numpy(column.values), [0]
    # Of rows beyond the fewest, one in as many as there are in the fewest values ends a page.
    one_in = max(1, fewest * len(column) // max(1, offsets[-1] - offsets[0]))
    for row, (start, stop) in enumerate(pairwise(offsets), 1):
        num = stop - offsets[edges[-1]]
        if num >= most or (
            num >= fewest and xxhash.xxh3_64_intdigest(values[start:stop].data) % one_in == 0
        ):
            edges.append(row)
    return edges if edges[-1] == len(column) else [*edges, len(column)]


def _page(column: pa.Array) -> tuple[int, bytes]:
    """Return the number of values of a page, empty lists among them, and its bytes."""
    if pa.types.is_string(column.type):
        texts = [text.encode() for text in column.to_pylist() if text is not None]
        levels = _levels(to_numpy(column.is_valid().cast(pa.uint8())), 1)
        return len(column), levels + b"".join(
            len(text).to_bytes(4, "little") + text for text in texts
        )
    values = to_numpy(column.flatten())
    lengths = np.diff(to_numpy(column.offsets))
    num_values = np.maximum(lengths, 1)
    starts = np.cumsum(num_values) - num_values
    repetition = np.ones(int(num_values.sum()), dtype=np.uint8)
    repetition[starts] = 0
    definition = np.full(len(repetition), LEVELS_OF_LIST, dtype=np.uint8)
    definition[starts[lengths == 0]] = 1
    levels = _levels(repetition, 1) + _levels(definition, 2)
    return len(repetition), levels + values.astype("<i4", copy=False).tobytes()


def _levels(levels: npt.NDArray[np.uint8], width: int) -> bytes:
    """Return levels of `width` bits: a run of equal ones, or all of them packed; before them their
    bytes."""
    if len(levels) and levels.min() == levels.max():
        packed = _varint(len(levels) << 1) + bytes([levels[0]])
    else:
        bits = levels if width == 1 else (levels[:, None] >> np.arange(width, dtype=np.uint8)) & 1
        groups = -(-len(levels) // 8)
        packed = np.packbits(bits, bitorder="little").tobytes().ljust(groups * width, b"\0")
        packed = _varint(groups << 1 | 1) + packed
    return len(packed).to_bytes(4, "little") + packed

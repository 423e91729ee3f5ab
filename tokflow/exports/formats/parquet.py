"""Parquet shards of sequences, as `datasets`, pandas and most trainers read them.

    <part>-<i>-of-<n>.parquet    `datasets.load_dataset(folder)` takes the part from the name
    input_ids       list<int32>, sequence_length long unless `padding` is another
    attention_mask  list<int8>   1 at tokens, 0 at padding
    segment_ids     list<int32>  1, 2, ... in each row; 0 is padding
    position_ids    list<int32>  0 at each segment's first token
    loss_mask       list<int8>   of chats alone: 1 at loss tokens, 0 at others; of other
                                 documents every token is one, as attention_mask says
    url             string       and whatever else `documents.keep_columns` names, where the
                                 strategy is one_document; null beside such a part
    lost            nothing, unless `columns` leaves it out

`columns` names others, and `rename` gives them other names:

    axolotl          [attention_mask, labels] of one_document, which it packs itself and tells apart
                     by position_ids of its own; those three columns tell it that nothing is to be
                     tokenized. It packs rows of several documents as if each were one
    torchtune        [labels], input_ids renamed tokens, of one_document, for PackedDataset
    Megatron-Bridge  [next_loss_mask, seq_start_id], the first renamed loss_mask: its packed parquet

Source: axolotl 0.19.0, utils/data/wrappers.py lines 98-99 and 137-144, utils/trainer.py lines
91-127; torchtune 0.6.1, datasets/_packed.py lines 96-157; Megatron-Bridge at 067f987 (0.7.0),
data/packing/parquet.py lines 49-290, and algorithms.py lines 316-378, which shifts the loss mask.

Row groups are small, so that a loader can start anywhere at little cost. Pages end where the
content says, so that files made again share most bytes with those that the hub has, which stores
equal chunks once; a page index lets its viewer read a row of a large group.

`datasets.load_dataset(folder)` knows the parts train, validation and test, and takes train-b or
train_b for train too. Say which files are which where parts are called otherwise:
`load_dataset("parquet", data_files={"train": "train-[0-9]*", "train_b": "train-b-[0-9]*"})`.
"""

import base64
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.exports.columns import Lists, columns_in_files
from tokflow.exports.options import Column, FileName, RowOptions
from tokflow.exports.table_files import (
    TOKENS_PER_BATCH,
    ReadBatch,
    TableFiles,
    lists_in,
    names_in_files,
)
from tokflow.exports.token_files import open_hashed, sequences_within
from tokflow.store.config import Count
from tokflow.store.streams import HashedWriter
from tokflow.store.tables import one_array, to_numpy


class ParquetOptions(RowOptions):
    """Parquet: <part>-<i>-of-<n>.parquet with input_ids, attention_mask, segment_ids, position_ids
    and, of chats, loss_mask."""

    rename: Annotated[
        dict[Column | Literal["input_ids"], FileName], Field(exclude_if=operator.not_)
    ] = Field(default_factory=dict)
    """Other names of columns in the files: `{input_ids: tokens}`."""
    sequences_per_group: Count = 1_000
    """Rows of a row group; fewer where they would hold more than four million tokens."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Codec of the columns."""

    def check(self) -> None:
        """Refuse a name that two columns have, and one for a column that is not there."""
        super().check()
        columns = columns_in_files(self, is_chats=True)
        names = names_in_files(self, columns)
        if unknown := {*self.rename} - {*columns}:
            expected, found = f"columns that there are: {', '.join(columns)}", repr(min(unknown))
        elif len({*names}) < len(names):
            expected, found = "a name of its own for each column", ", ".join(names)
        else:
            return
        remedy = "change `rename` or `columns`"
        raise ConfigError(where="rename", expected=expected, found=found, remedy=remedy)


def _reader(_: Any) -> ReadBatch:
    """Return a reader of row groups; a footer is read with the first of a file, and kept."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    footer_of = cache(pq.read_metadata)

    def group(path: Path, number: int, rows: slice, columns: Sequence[str]) -> dict[str, Lists]:
        with pq.ParquetFile(path, metadata=footer_of(path)) as file:
            return lists_in(file.read_row_group(number, columns=columns), columns)

    return group


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
        columns = [one_array(column) for column in table.columns]
        edges, chunks = _page_edges(columns[0]), []
        for field, column in zip(self._schema, columns, strict=True):
            first = self._file.tell() if len(table) else 0
            pages, sums = list[Fields](), np.zeros(3, dtype=np.int64)
            for start, stop in pairwise(edges):
                num_values, page = _page(column, start, stop)
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


def _page(column: pa.Array, start: int, stop: int) -> tuple[int, bytes]:
    """Return the number of values of a page of some rows, empty lists among them, and its bytes."""
    if pa.types.is_string(column.type):
        rows = column.slice(start, stop - start)
        texts = [text.encode() for text in rows.to_pylist() if text is not None]
        levels = _levels(to_numpy(rows.is_valid().cast(pa.uint8())), 1)
        return len(rows), levels + b"".join(
            len(text).to_bytes(4, "little") + text for text in texts
        )
    offsets = to_numpy(column.offsets)[start : stop + 1]
    values = to_numpy(column.values)[offsets[0] : offsets[-1]].astype("<i4", copy=False)
    num, levels = _levels_of_lists(np.diff(offsets).tobytes(), offsets.dtype.str)
    return num, b"".join((levels, values.data))


@lru_cache(maxsize=256)
def _levels_of_lists(lengths: bytes, dtype: str) -> tuple[int, bytes]:
    """Return the number of values of lists, empty ones among them, and their levels; kept, for the
    columns of a table mostly have lists of equal lengths."""
    sizes = np.frombuffer(lengths, dtype)
    num_values = np.maximum(sizes, 1)
    starts = np.cumsum(num_values) - num_values
    repetition = np.ones(int(num_values.sum()), dtype=np.uint8)
    repetition[starts] = 0
    definition = np.full(len(repetition), LEVELS_OF_LIST, dtype=np.uint8)
    definition[starts[sizes == 0]] = 1
    return len(repetition), _levels(repetition, 1) + _levels(definition, 2)


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


FILES = TableFiles(
    name=lambda part, number, options, num, *_: f"{part}-{number:05d}-of-{num:05d}.parquet",
    new=lambda path, schema, options: parquet_file(path, schema, options.compression),
    reader=_reader,
    at_once=lambda rows, options: min(
        options.sequences_per_group, sequences_within(TOKENS_PER_BATCH, rows.sequence_length)
    ),
)

# Version 2: pages end where the content says, and have an index. Version 3: pages are written by
# tokflow, and end behind the same row in all columns.
FORMAT = FILES.format(ParquetOptions, version=3)

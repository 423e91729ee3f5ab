"""JSON lines: one object per sequence, its fields lists of numbers.

    <part>-<i>-of-<n>.jsonl    also .jsonl.gz (one member, mtime 0) and .jsonl.zst (one frame)
    {"input_ids":[464,2068],"segment_ids":[1,1]}
               input_ids and the columns of the option; no blanks, a newline behind each object;
               lists of one length unless `padding: none`; behind them, as text or null, those
               of `documents.keep_columns`, where the strategy is one_document, of a
               part or of all
    lost       what no column tells of

`datasets.load_dataset("json", data_files=...)`, pandas.read_json(lines=True) and pyarrow.json
read it. Text has twice the bytes of parquet's numbers: for eyes, and for tools that know nothing
else.

`datasets.load_dataset(folder)` knows train, validation and test alone: see parquet.

Source: jsonlines.org; RFC 8259; RFC 1952 for .gz.
"""

import gzip
import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from tokflow.documents.decoding import read_blocks
from tokflow.documents.formats.txt import cut
from tokflow.exports.columns import OF_IDS, TYPES, Lists
from tokflow.exports.options import Column, ColumnOptions
from tokflow.exports.table_files import Located, ReadBatch, ReadOn, TableFiles
from tokflow.exports.token_files import open_hashed, sequences_within
from tokflow.store.config import Listed, Size
from tokflow.store.streams import zstd
from tokflow.store.tables import to_numpy

TOKENS_AT_ONCE = 500_000
"""Made into text at one go; a column of them takes some 20 MB meanwhile."""

READ_BYTES = 4_000_000


class JsonlOptions(ColumnOptions):
    """JSON lines: <part>-<i>-of-<n>.jsonl (.gz, .zst), an object per sequence with input_ids and
    the columns asked for."""

    shard_size: Size | None = None
    """Most bytes of a file before compression, such as 500MB, counted as 6 for each id and 2 for
    each other number. Default: 125 million tokens, padding included."""
    columns: Listed[Column] = ("segment_ids",)
    """Beside input_ids: attention_mask, segment_ids, position_ids, loss_mask (of chats it is
    added), labels (-100 at other than loss tokens and at the first token of each segment),
    next_loss_mask (the loss mask of labels that are shifted), seq_lengths (tokens of each segment),
    seq_start_id (where each begins)."""
    compression: Literal["none", "gz", "zst"] = "none"
    """gz: .jsonl.gz; zst: .jsonl.zst."""
    compression_level: int | None = None
    """gz: 1 to 9, default 3; zst: 1 to 22, default 3."""


class _LineWriter:
    """A writer of tables as lines of JSON."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write_table(self, table: pa.Table) -> None:
        """Write a line for each row."""
        rows = zip(*(_values(column.chunk(0)) for column in table.columns), strict=True)
        records = [dict(zip(table.column_names, row, strict=True)) for row in rows]
        self._file.write(msgspec.json.Encoder().encode_lines(records))


def _values(column: pa.Array) -> Iterable[Any]:
    """Return the texts of a column, or its lists of numbers."""
    if pa.types.is_string(column.type):
        texts: list[str | None] = column.to_pylist()
        return texts
    numbers, offsets = to_numpy(column.values).tolist(), to_numpy(column.offsets).tolist()
    return (numbers[start:stop] for start, stop in pairwise(offsets))


@contextmanager
def _new(path: Path, schema: pa.Schema, options: JsonlOptions) -> Iterator[_LineWriter]:
    """Open a new file; of a compressed one a gzip member without name and time, or one frame."""
    level = options.compression_level or 3
    with open_hashed(path) as hashed, ExitStack() as stack:
        file: Any = hashed
        if options.compression == "gz":
            file = stack.enter_context(gzip.GzipFile("", "wb", level, file, mtime=0))
        elif options.compression == "zst":
            file = stack.enter_context(zstd.ZstdFile(file, "wb", level=level))
        yield _LineWriter(file)


def _reader(_: Any) -> ReadBatch:
    """Return a reader of lines, which finds them again where the last ones ended."""

    def end_of_line(data: mmap.mmap, start: int) -> int:
        return data.find(b"\n", start) + 1 or len(data)

    read_on = ReadOn(_lines_of)
    located = cache(partial(Located, end_of=end_of_line, split=bytes.splitlines))
    decoder = msgspec.json.Decoder(dict[str, list[int] | str | None])

    def read(path: Path, number: int, rows: slice, columns: Sequence[str]) -> dict[str, Lists]:
        is_plain = path.suffix == ".jsonl"
        lines = located(path).taken(rows) if is_plain else read_on.taken(path, rows)
        records = [decoder.decode(line) for line in lines]
        return {column: _lists(records, column) for column in columns}

    return read


def _lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a compressed file.

    Raises: RawFileError where the compressed data is damaged.
    """
    for batch in cut(read_blocks(path, block_bytes=READ_BYTES), b"\n", max_bytes=sys.maxsize):
        yield from batch.lines


def _lists(records: Sequence[Mapping[str, Any]], column: str) -> Lists:
    lists = [record[column] for record in records]
    num_values = np.array([*map(len, lists)], dtype=np.int64)
    dtype = np.dtype(str(TYPES[column]))
    values = np.fromiter(chain.from_iterable(lists), dtype=dtype, count=int(num_values.sum()))
    return values, num_values


def _name(part: str, number: int, options: JsonlOptions, num: int, *_: Any) -> str:
    suffix = "" if options.compression == "none" else f".{options.compression}"
    return f"{part}-{number:05d}-of-{num:05d}.jsonl{suffix}"


FILES = TableFiles(
    name=_name,
    new=_new,
    reader=_reader,
    at_once=lambda rows, options: sequences_within(TOKENS_AT_ONCE, rows.sequence_length),
    row_bytes=lambda names, length: sum(6 if of in OF_IDS else 2 for of in names) * length,
)

# Version 2: members of gzip have other bytes than those of version 1.
FORMAT = FILES.format(JsonlOptions, version=2)

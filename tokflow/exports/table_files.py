"""Files with a record per sequence, written and read as tables of columns: the one writer that
parquet, arrow, hf_dataset, easydel and jsonl are options of."""

import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from tokflow.errors import ConfigError
from tokflow.exports.columns import (
    TYPES,
    Lists,
    columns_in_files,
    columns_read,
    fields_of,
    layout_of_columns,
    make_columns,
    schema_of,
    written_positions,
)
from tokflow.exports.format import Arrays, Format, Portion
from tokflow.exports.index import KeptOfDocuments
from tokflow.exports.options import PartRows
from tokflow.exports.part import FileFacts, Part
from tokflow.exports.reading import Export
from tokflow.exports.token_files import files_of, sequences_within
from tokflow.pools.machine import renew_in_forks
from tokflow.store.config import Config
from tokflow.store.tables import one_array, to_numpy

TOKENS_PER_FILE = 125_000_000
"""Default size of a file, padding included: 13 or 14 bytes a token in memory."""

TOKENS_PER_BATCH = 4_000_000
"""Most tokens of a record batch or row group: it is made in memory, at 13 or 14 bytes each."""

ReadBatch = Callable[[Path, int, slice, Sequence[str]], Mapping[str, Lists]]
"""Return columns of a batch, given its file, its number in it, its rows there, and the columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFiles:
    """Files of a part's sequences, in batches that are read alone."""

    name: Callable[..., str]
    """The name of a file; see `Format.name`."""
    new: Callable[[Path, pa.Schema, Any], Any]
    """Open a writer of tables, given the options; it ends with its block."""
    reader: Callable[[Any], ReadBatch]
    """Return a reader of the batches of one part, given the options."""
    at_once: Callable[[PartRows, Any], int]
    """Sequences of a batch, which is cut where a file ends."""
    row_bytes: Callable[[Iterable[str], int], int] = lambda names, length: sum(
        TYPES[name].bit_width // 8 * length + 4 for name in names
    )
    """Bytes that `shard_size` counts for a sequence with these columns and of this length; as many
    as in memory, unless a format has it otherwise."""
    file_bytes: int | None = None
    """Default size of a file; None: that of TOKENS_PER_FILE."""
    is_mapped: Callable[[Any], bool] = lambda options: False
    """Whether the reader decodes nothing."""

    def format(self, options: type[Config], *, version: int = 1) -> Format:
        """Return the format of these files alone."""
        how: Any = {"portions": self.portions, "sizes": self.sizes, "version": version}
        return Format(options, layout_of_columns, self.write, self.name, **how)

    def bytes_of_row(self, rows: PartRows, options: Any) -> int:
        """Return the bytes that `shard_size` counts for a sequence of a part."""
        columns = columns_in_files(options, is_chats=rows.has_loss_mask)
        return self.row_bytes(columns, rows.sequence_length)

    def sizes(self, rows: PartRows, options: Any) -> list[int]:
        """Return the number of sequences in each file of a part."""
        row_bytes = self.bytes_of_row(rows, options)
        usual = sequences_within(TOKENS_PER_FILE, rows.sequence_length)
        if self.file_bytes is not None:
            usual = sequences_within(self.file_bytes, row_bytes)
        sizes: list[int] = options.sizes(rows, row_bytes, usual)
        return sizes

    def write(self, part: Part, options: Any, folder: Path) -> Iterator[FileFacts]:
        """Write the files of a part."""
        return ({} for _ in self.write_each(part, options, folder))

    def write_each(self, part: Part, options: Any, folder: Path) -> Iterator[Path]:
        """Write the files of a part, and yield the path of each that is whole."""
        columns = columns_in_files(options, is_chats=part.has_loss_mask)
        kept, written = KeptOfSequences(part), written_positions(part, options.padding)
        schema = schema_in_files(part, options)
        sizes, at_once = self.sizes(part.rows, options), self.at_once(part.rows, options)
        options.check_num_files(len(sizes))
        paths = [folder / name for name in self._names(part.name, len(sizes), options)]
        for number, batches in files_of(part, sizes, options, at_once):
            paths[number].parent.mkdir(exist_ok=True)
            with self.new(paths[number], schema, options) as writer:
                for batch in batches:
                    arrays = make_columns(batch, columns, written)
                    arrays += kept.next(len(batch)).columns
                    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            yield paths[number]

    def _names(self, part: str, num: int, options: Any) -> list[str]:
        return [self.name(part, number, options, num) for number in range(num)]

    def portions(self, export: Export, part: str) -> list[Portion]:
        """Return the batches of a part."""
        options, rows, read = export.options, export.rows(part), self.reader(export.options)
        keeps = export.manifest.details["keeps"]
        columns = columns_read(columns_in_files(options, is_chats=rows.has_loss_mask), keeps)
        # Nothing has to be worked out or filled.
        is_told = "position_ids" in columns or "position_ids" not in keeps
        is_told &= options.padding == "max" and "labels" not in columns

        own = dict(zip(names_in_files(options, columns), columns, strict=True))

        def load(name: str, number: int, rows: slice) -> Arrays:
            found = read(export.stored.file(name), number, rows, [*own])
            return fields_of({own[name]: lists for name, lists in found.items()}, export)

        sizes, at_once = self.sizes(rows, options), self.at_once(rows, options)
        names, is_mapped = self._names(part, len(sizes), options), self.is_mapped(options)
        return export.batch_portions(load, names, sizes, at_once, is_mapped=is_mapped and is_told)


class KeptOfSequences:
    """The kept columns of a part's sequences, of those `within`, where each is of one document;
    null where only those of another part are, so that all parts have one schema."""

    def __init__(self, part: Part) -> None:
        kept = KeptOfDocuments(part.splits)
        self.names = kept.names if part.has_kept_columns else ()
        self._is_of_one = part.packed.packing.strategy == "one_document"
        first = 0 if part.within is None else part.within.start
        # An entry of the index is then a sequence.
        self._tables = kept.added(_from(part.packed.index(), first))
        self._waiting = pa.table({name: pa.array([], pa.string()) for name in self.names})

    def next(self, num: int) -> pa.Table:
        """Return the columns of the next `num` sequences; of none where no column is kept."""
        if not self._is_of_one:
            return pa.table({name: pa.nulls(num, pa.string()) for name in self.names})
        while self.names and len(self._waiting) < num:
            more = next(self._tables).select(self.names)
            self._waiting = pa.concat_tables([self._waiting, more])
        taken = self._waiting.slice(0, num)
        self._waiting = self._waiting.slice(num)
        return taken.combine_chunks()


def _from(tables: Iterator[pa.Table], first: int) -> Iterator[pa.Table]:
    """Yield what stands in the tables behind `first` rows."""
    for table in tables:
        if first < len(table):
            yield table.slice(first)
        first = max(0, first - len(table))


def schema_in_files(part: Part, options: Any) -> pa.Schema:
    """Return the schema of a part's tables.

    Raises: ConfigError where a kept column has the name that another was given.
    """
    columns = columns_in_files(options, is_chats=part.has_loss_mask)
    names, kept = names_in_files(options, columns), KeptOfSequences(part).names
    if twice := {*names} & {*kept}:
        raise ConfigError(
            where="rename",
            expected="names that no column of documents.keep_columns has",
            found=", ".join(sorted(twice)),
            remedy="change `rename` or `keep_columns`",
        )
    fields = zip(schema_of(columns, kept), [*names, *kept], strict=True)
    return pa.schema([of.with_name(name) for of, name in fields])


def names_in_files(options: Any, columns: Sequence[str]) -> list[str]:
    """Return the names that columns have in files: their own, unless the option gives others."""
    renamed: Mapping[str, str] = getattr(options, "rename", {})
    return [renamed.get(name, name) for name in columns]


def lists_in(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> dict[str, Lists]:
    """Return columns of a table of lists."""
    found = {}
    for name in columns:
        column = one_array(table.column(name))
        num_values = np.diff(to_numpy(column.offsets)).astype(np.int64)
        found[name] = to_numpy(column.flatten()), num_values
    return found


MAX_LEFT = 8
"""Files that are left open, to be read on."""


@dataclass(eq=False)
class ReadOn:
    """Records of files that can only be read from their beginning, such as compressed ones.

    Asked for in order they are read once; out of order, the file is read again."""

    open: Callable[[Path], Iterator[bytes]]
    _left: OrderedDict[Path, tuple[int, Iterator[bytes]]] = field(init=False)
    """Position and open iterator of each file."""
    _lock: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._leave_none()
        renew_in_forks(self, ReadOn._leave_none)  # which would move its parent's place in the file

    def _leave_none(self) -> None:
        self._left, self._lock = OrderedDict(), Lock()

    def taken(self, path: Path, rows: slice) -> list[bytes]:
        """Return records of a file; fewer at its end."""
        with self._lock:  # so that who asks for the next ones waits, and reads on
            position, records = self._left.pop(path, (0, None))
            if records is None or position > rows.start:
                position, records = 0, self.open(path)
            stop = None if rows.stop is None else rows.stop - position
            found = list(islice(records, rows.start - position, stop))
            if rows.stop is not None:
                self._left[path] = rows.stop, records
            while len(self._left) > MAX_LEFT:
                self._left.popitem(last=False)
        return found


@dataclass(eq=False)
class Located:
    """Records of a file, read where they begin; that is found once, as far as it is needed."""

    path: Path
    end_of: Callable[[mmap.mmap, int], int]
    """Return the byte behind the record that begins at a byte, or the end of the file."""
    split: Callable[[bytes], Iterable[bytes]]
    """Return the records of a stretch of the file."""
    _starts: dict[int, int] = field(default_factory=lambda: {0: 0}, init=False)
    """The first byte of each record found so far; threads that look at once find the same."""

    def taken(self, rows: slice) -> list[bytes]:
        """Return records; fewer at the end of the file."""
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            stop = len(data) if rows.stop is None else self._start(rows.stop, data)
            return [*self.split(data[self._start(rows.start, data) : stop])]

    def _start(self, number: int, data: mmap.mmap) -> int:
        starts, last = self._starts, len(self._starts) - 1
        while last < number and starts[last] < len(data):
            starts[last + 1] = self.end_of(data, starts[last])
            last += 1
        return starts[min(number, last)]

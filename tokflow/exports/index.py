"""The index of an export: from each segment of its tokens back to the document it is of, with the
columns of raw files that are kept beside it; and damage of its files as errors that name them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import ConfigError, CorruptOutputError, MissingOutputError
from tokflow.split import Split
from tokflow.store.manifest import OWN_FOLDER
from tokflow.store.requests import RemoteStoreError
from tokflow.store.store import StoredOutput
from tokflow.store.tables import (
    Columns,
    TableWriter,
    make_table,
    one_array,
    repeated,
    to_arrow,
    to_numpy,
)
from tokflow.tokens.shard import ROWS_OF_PASS, Origins

INDEX_NAME = f"{OWN_FOLDER}/index.parquet"

INDEX_SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("raw_file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("char_start", pa.int64(), nullable=False),
        pa.field("token_in_piece", pa.int64(), nullable=False),
    ]
)
"""Leads any token of an export back to its text; one row per segment, tokens of one document.
position: of the segment's first token in the part (in a format of sequences: sequence ordinal times
sequence_length plus column). raw_file and row: the document. char_start: code points of the
document before the text that was tokenized (0 unless the split cut it); token_in_piece: tokens
of that text before the segment. Positions count every sequence as filled up to sequence_length,
also where `padding: none` or `longest` leaves padding out of the files."""

INDEX_VERSION = 1
"""Raised when the same segments would give other bytes; a part of every export's version."""

INDEX_ROWS_PER_GROUP = 2**17
"""Rows of one row group, of which a lookup reads one: 10 ms."""

INDEX_ROWS_AT_ONCE = 2**20
"""Rows of one table while the index is made."""


def write_index(path: Path, parts: Iterable[Iterable[pa.Table]], kept: Sequence[str] = ()) -> None:
    """Write the tables of each part, which are in the order of their positions; `kept` names the
    columns behind those of the schema.

    The bytes depend on the rows alone. A row group has rows of one part, and INDEX_ROWS_PER_GROUP
    of them but for the last.
    """
    path.parent.mkdir(exist_ok=True)
    schema = pa.schema([*INDEX_SCHEMA, *((name, pa.string()) for name in kept)])
    with TableWriter(path, schema, rows_per_group=INDEX_ROWS_PER_GROUP) as writer:
        for tables in parts:
            for table in tables:
                writer.add(table)
            writer.end_group()


def read_index(export: StoredOutput, part: str, start: int, stop: int) -> list[dict[str, Any]]:
    """Return the rows that touch the positions from `start` to `stop` of a part, in order.

    Only the row groups that hold one of them are read, as their statistics tell; of a large file
    at a URL no more is fetched. Raises: CorruptOutputError where it is damaged.
    """
    [rows] = read_spans(export, part, [(start, stop)])
    return rows


def read_spans(
    export: StoredOutput, part: str, spans: Sequence[tuple[int, int]]
) -> list[list[dict[str, Any]]]:
    """Return the rows that touch the positions of each of some spans, as `read_index` does; a row
    group is read once, whatever the order of the spans."""
    found: list[list[dict[str, Any]]] = [[] for _ in spans]
    with _opened(export, read_dictionary=["part", "raw_file"]) as file:
        groups = _groups_of(file.metadata, part)
        firsts = np.array([first for _, first in groups], dtype=np.int64)
        within = [[min(edge, 2**63 - 1) for edge in span] for span in spans]
        starts, stops = np.array(within, dtype=np.int64).reshape(-1, 2).T
        edges = np.searchsorted(firsts, starts, side="right") - 1, np.searchsorted(firsts, stops)
        for at, (number, _) in enumerate(groups):
            here = np.flatnonzero((edges[0] <= at) & (at < edges[1]))
            if not len(here):
                continue
            table = file.read_row_group(number)
            begins = to_numpy(table["position"])
            ends = begins + to_numpy(table["num_tokens"])
            first = np.searchsorted(ends, starts[here], side="right").tolist()
            last = np.searchsorted(begins, stops[here]).tolist()
            for span, start, stop in zip(here.tolist(), first, last, strict=True):
                found[span] += table.slice(start, max(0, stop - start)).to_pylist()
    return found


def scan_index(export: StoredOutput, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of all rows of an index, in order, a row group at a time; parts and raw files
    as dictionaries. Raises: CorruptOutputError where it is damaged."""
    with _opened(export, read_dictionary=["part", "raw_file"]) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns=list(columns))


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Let whatever a library finds wrong with the content of a file, or of a folder, be an error
    that names it. What the system refuses is none of it, but for a file that is gone.

    Raises: CorruptOutputError; MissingOutputError.
    """
    try:
        yield
    except MissingOutputError:
        raise
    except FileNotFoundError as error:
        raise MissingOutputError(
            where=path,
            expected="the files that the export was opened with",
            found="a file was deleted",
            remedy="keep exports that are read; run `tokflow run` again, and open it anew",
        ) from error
    except Exception as error:
        is_of_system = isinstance(error, OSError) and error.errno is not None
        known = CorruptOutputError | ConfigError | MemoryError | ImportError | RemoteStoreError
        if is_of_system or isinstance(error, known):
            raise
        found = f"{type(error).__name__}: {error}"
        raise damaged_file(path, expected="what its format says", found=found) from error


def damaged_file(path: Path, *, expected: str, found: str) -> CorruptOutputError:
    """Return the error of a file that is not what its format says."""
    return CorruptOutputError(
        where=path,
        expected=expected,
        found=found,
        remedy="delete the export and run `tokflow run` again",
    )


@contextmanager
def _opened(export: StoredOutput, **options: Any) -> Iterator[Any]:
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    with (
        damage_named(export.folder / INDEX_NAME),
        export.open(INDEX_NAME) as source,
        pq.ParquetFile(source, **options) as file,
    ):
        yield file


def documents_of_stream(export: StoredOutput, part: str, limit: int | None = None) -> pa.Table:
    """Return the documents of a part of a stream in order, all or the first `limit`, one row each:
    the columns of the index but `part` and `token_in_piece`.

    Where the EOS of a document is moved before it, the index has a row of its own for it, in front
    of that of the rest.
    """
    with _opened(export) as file:
        columns = [name for name in file.schema_arrow.names if name != "part"]
        tables, left = [file.schema_arrow.empty_table().select(columns)], 2 * (limit or 0)
        for group, _ in _groups_of(file.metadata, part):
            if limit is None or left > 0:
                table = file.read_row_group(group, columns=columns)
                tables.append(table if limit is None else table[:left])
                left -= len(table)
    segments = pa.concat_tables(tables)
    is_first = np.ones(len(segments), dtype=bool)
    is_first[1:] = to_numpy(segments["token_in_piece"])[:-1] == 0
    first = np.flatnonzero(is_first)
    num_tokens = to_numpy(segments["num_tokens"])
    sums = np.add.reduceat(num_tokens, first) if len(first) else num_tokens
    found = segments.take(to_arrow(first)).drop_columns("token_in_piece")
    number = found.schema.get_field_index("num_tokens")
    return found.set_column(number, found.schema.field(number), to_arrow(sums))[:limit]


def read_sizes(
    export: StoredOutput, part: str, num_sequences: int, length: int
) -> npt.NDArray[np.int32]:
    """Return how many tokens each sequence of a part has, padding left out."""
    sizes = np.zeros(num_sequences, dtype=np.int32)
    with _opened(export) as file:
        for group, _ in _groups_of(file.metadata, part):
            table = file.read_row_group(group, columns=["position", "num_tokens"])
            num_tokens = to_numpy(table["num_tokens"]).astype(np.int32)
            np.add.at(sizes, to_numpy(table["position"]) // length, num_tokens)
    return sizes


def _groups_of(metadata: Any, part: str) -> list[tuple[int, int]]:
    """Return the number of each group of a part that has a row, and its first position."""
    names = metadata.schema.names
    groups: list[tuple[int, int]] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows and group.column(names.index("part")).statistics.min == part:
            first = group.column(names.index("position")).statistics.min
            groups.append((number, first))
    return groups


def index_tables(part: str, origins: Origins, columns: Columns) -> Iterator[pa.Table]:
    """Yield the index of segments of one partition, given their other columns, the rows of its
    shard among them; a segment of no tokens has no row in it."""
    is_some = columns["num_tokens"] > 0
    if not is_some.all():
        columns = {name: values[is_some] for name, values in columns.items()}
    for first in range(0, len(columns["row"]), INDEX_ROWS_AT_ONCE):
        rows = slice(first, first + INDEX_ROWS_AT_ONCE)
        some = {name: values[rows] for name, values in columns.items()}
        num = len(some["row"])
        raw_file, row = origins.of_rows(some["row"])
        names = {"part": repeated(part, num), "raw_file": raw_file}
        yield make_table({**some, **names, "row": row}, INDEX_SCHEMA)


SHARDS_IN_MEMORY = 16
"""Shards with their columns in memory; an index in the order of its files needs one at a time."""


class KeptOfDocuments:
    """The kept columns of the documents of splits, which are read when asked for."""

    def __init__(self, splits: Sequence[Split]) -> None:
        shards = [split.shard for split in splits]
        names = (name for shard in shards for name in shard.keep_columns)
        self.names = tuple(dict.fromkeys(names))
        """Columns that any shard keeps; shards without one have null there."""
        self._shards = shards
        self._read = lru_cache(SHARDS_IN_MEMORY)(self._read_shard)

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Ordinal of the shard of each raw file, and its first row there."""
        return {
            file: (number, first_row)
            for number, origins in enumerate(shard.origins for shard in self._shards)
            for file, first_row in zip(origins.raw_files, origins.first_rows, strict=True)
        }

    def added(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield tables of an index with the columns behind their own."""
        for table in tables:
            if self.names:
                files = one_array(table["raw_file"]).dictionary_encode()
                places = np.array([self._places[file] for file in files.dictionary.to_pylist()])
                number, first = places[to_numpy(files.indices)].T
                rows = to_numpy(table["row"]) + first
                order = np.argsort(number, kind="stable")
                numbers, edges = np.unique(number[order], return_index=True)
                of_shards = zip(numbers.tolist(), np.split(order, edges[1:]), strict=True)
                found = pa.concat_tables([self._of_shard(of, rows[at]) for of, at in of_shards])
                found = found.take(to_arrow(np.argsort(order)))
                for name in self.names:
                    table = table.append_column(name, found[name])
            yield table

    def _of_shard(self, number: int, rows: npt.NDArray[np.int64]) -> pa.Table:
        """Return the columns of documents of one of the shards, given their rows in it; null where
        the shard does not keep one."""
        if not self._shards[number].keep_columns:
            nothing = pa.nulls(len(rows), pa.string())
            return pa.table([nothing for _ in self.names], names=list(self.names))
        of_shard, kept = self._read(number)
        return kept.take(to_arrow(np.searchsorted(of_shard, rows % ROWS_OF_PASS)))

    def _read_shard(self, number: int) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Return the row of each document of a shard that keeps some columns, and the columns."""
        shard = replace(self._shards[number], num_passes=1)
        rows = to_numpy(shard.documents(["row"])["row"])
        own = shard.kept_columns()
        nulls = pa.nulls(len(own), pa.string())
        columns = [own[of] if of in shard.keep_columns else nulls for of in self.names]
        return rows, pa.table(columns, names=list(self.names)).combine_chunks()

"""Columns of raw files that a dataset keeps, for the documents of an export."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.part import Part
from tokflow.store.tables import to_arrow, to_numpy
from tokflow.tokens.shard import ROWS_OF_PASS

SHARDS_IN_MEMORY = 16
"""Shards with their columns in memory; an index in the order of its files needs one at a time."""


class KeptOfDocuments:
    """The kept columns of the documents of a part, which are read when asked for."""

    def __init__(self, part: Part) -> None:
        shards = [split.shard for split in part.splits]
        names = (name for shard in shards for name in shard.keep_columns)
        self.names = tuple(dict.fromkeys(names))
        """Columns that any shard keeps; shards without one have null there."""
        self._shards = shards
        self._places = {
            file: (number, first_row)
            for number, origins in enumerate(shard.origins for shard in shards)
            for file, first_row in zip(origins.raw_files, origins.first_rows, strict=True)
        }
        """Ordinal of the shard of each raw file, and its first row there."""
        self._read = lru_cache(SHARDS_IN_MEMORY)(self._read_shard)

    def added(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Return tables of an index with the columns behind their own."""
        return map(self._with_columns, tables) if self.names else iter(tables)

    def _with_columns(self, table: pa.Table) -> pa.Table:
        files = table["raw_file"].combine_chunks().dictionary_encode()
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
        return table

    def _of_shard(self, number: int, rows: npt.NDArray[np.int64]) -> pa.Table:
        """Return the columns of documents of one of the shards, given their rows in it."""
        of_shard, kept = self._read(number)
        return kept.take(to_arrow(np.searchsorted(of_shard, rows % ROWS_OF_PASS)))

    def _read_shard(self, number: int) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Return the row of each document of one of the shards, and its columns; null where the
        shard does not keep one."""
        shard = self._shards[number]
        rows = to_numpy(shard.documents(["row"])["row"]) % ROWS_OF_PASS
        if not shard.keep_columns:
            rows = np.unique(rows)
        own = shard.kept_columns() if shard.keep_columns else pa.table({"row": to_arrow(rows)})
        nulls = pa.nulls(len(own), pa.string())
        columns = [own[of] if of in shard.keep_columns else nulls for of in self.names]
        return rows[: len(own)], pa.table(columns, names=list(self.names)).combine_chunks()


class KeptOfSequences:
    """The kept columns of a part's sequences, of those `within`, where each is of one document;
    null where only those of another part are, so that all parts have one schema."""

    def __init__(self, part: Part) -> None:
        kept = KeptOfDocuments(part)
        self.names = kept.names if part.has_kept_columns else ()
        self._is_of_one = part.packing.strategy == "one_document"
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

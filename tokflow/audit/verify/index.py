"""Does the index of an export lead each token to where it came from."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokflow.audit.verify.problems import unequal
from tokflow.exports import INDEX_NAME, Layout, Part, index_of
from tokflow.store.arrow import to_numpy
from tokflow.store.manifest import Manifest
from tokflow.store.tables import read_part


def index_problems(folder: Path, manifest: Manifest, part: str) -> Iterator[str]:
    """Yield what is wrong with the runs of a part: they cover its tokens and do not overlap."""
    columns = read_part(folder / INDEX_NAME, part, ["position", "num_tokens"])
    start, size = columns["position"], columns["num_tokens"]
    where = f"{folder / INDEX_NAME}: {part}"
    num_tokens = manifest.counts[f"{part}.num_tokens"]
    if len(wrong := np.flatnonzero(start[1:] < (start + size)[:-1])):
        yield f"{where}: expected runs that do not overlap, found one at {start[wrong[0] + 1]:,}"
    yield from unequal(where, num_tokens=(num_tokens, int(size.sum())))


def compare_index(folder: Path, layout: Layout, parts: Sequence[Part]) -> Iterator[str]:
    """Yield the first run of the index that is not the one which the parts have there."""
    path = folder / INDEX_NAME
    stored = _Rows(path)
    for part in parts:
        for expected in index_of(part, layout):
            found = stored.next(len(expected))
            if not found.equals(expected):
                position = _first_difference(found, expected)
                yield f"{path}: {part.name}: the run at {position:,} does not lead to its document"
                return
    if len(stored.next(1)):
        yield f"{path}: expected no more runs, found some"


def _first_difference(found: pa.Table, expected: pa.Table) -> int:
    """Return the position, as expected, of the first row that differs."""
    size = min(len(found), len(expected))
    for row in range(size):
        if not found.slice(row, 1).equals(expected.slice(row, 1)):
            return int(to_numpy(expected["position"])[row])
    return int(to_numpy(expected["position"])[size]) if size < len(expected) else 0


class _Rows:
    """The rows of a parquet file, a row group in memory at a time."""

    def __init__(self, path: Path) -> None:
        self._groups = _row_groups(path)
        self._rest: pa.Table | None = None

    def next(self, size: int) -> pa.Table:
        """Return the next `size` rows, or fewer at the end."""
        taken: list[pa.Table] = []
        while size:
            table = self._rest if self._rest is not None else next(self._groups, None)
            if table is None:
                break
            taken.append(table.slice(0, size))
            self._rest = table.slice(size) if len(table) > size else None
            size -= len(taken[-1])
        return pa.concat_tables(taken).combine_chunks() if taken else pa.table({})


def _row_groups(path: Path) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number)

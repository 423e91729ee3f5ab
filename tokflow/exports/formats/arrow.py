"""Arrow IPC files of sequences: memory-mapped, any row at once, no decoding.

    <part>-<i>-of-<n>.arrow    Arrow's IPC file format (Feather V2), which begins with ARROW1:
                               a footer leads to each record batch
    columns     those of parquet, in the same types and lengths: input_ids, attention_mask,
                segment_ids, position_ids and, of chats, loss_mask; and those that are kept
    lost        nothing

`pyarrow.ipc.open_file(pyarrow.memory_map(path)).get_batch(i)` reads one batch and copies nothing
where `compression` is none; pandas.read_feather, polars.read_ipc and
`datasets.load_dataset("arrow", data_files=...)` read the files too.

`datasets.load_dataset(folder)` knows train, validation and test alone: see parquet.

Source: the Arrow columnar format 1.5, "IPC File Format".
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tokflow.exports.columns import Lists
from tokflow.exports.options import RowOptions
from tokflow.exports.table_files import TOKENS_PER_BATCH, TableFiles, lists_in
from tokflow.exports.token_files import open_hashed, sequences_within
from tokflow.store.config import Count
from tokflow.store.tables import looked_into, map_file


class ArrowOptions(RowOptions):
    """Arrow: <part>-<i>-of-<n>.arrow, IPC files with the columns of parquet."""

    sequences_per_batch: Count = 1_000
    """Rows of a record batch; fewer where they would hold more than four million tokens."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Codec of the buffers; what is compressed is no longer memory-mapped but decompressed."""


@contextmanager
def _new(path: Path, schema: pa.Schema, options: ArrowOptions) -> Iterator[Any]:
    codec = None if options.compression == "none" else options.compression
    ipc = pa.ipc.IpcWriteOptions(compression=codec)
    with open_hashed(path) as file, pa.ipc.new_file(file, schema, options=ipc) as writer:
        yield writer


def _batch(path: Path, number: int, rows: slice, columns: Sequence[str]) -> dict[str, Lists]:
    with looked_into(path) as mapped, pa.ipc.open_file(mapped) as file:
        return lists_in(file.get_batch(number), columns)


def _decompressed(path: Path, number: int, rows: slice, columns: Sequence[str]) -> dict[str, Lists]:
    mapped = map_file(path)
    with pa.ipc.open_file(mapped) as file:
        numbers = [*map(file.schema.get_field_index, columns)]
    options = pa.ipc.IpcReadOptions(included_fields=numbers)
    with pa.ipc.open_file(mapped, options=options) as file:
        return lists_in(file.get_batch(number), columns)


FILES = TableFiles(
    name=lambda part, number, options, num, *_: f"{part}-{number:05d}-of-{num:05d}.arrow",
    new=_new,
    reader=lambda options: _batch if options.compression == "none" else _decompressed,
    at_once=lambda rows, options: min(
        options.sequences_per_batch, sequences_within(TOKENS_PER_BATCH, rows.sequence_length)
    ),
    is_mapped=lambda options: options.compression == "none",
)

FORMAT = FILES.format(ArrowOptions)

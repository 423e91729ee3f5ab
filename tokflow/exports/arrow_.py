"""Arrow IPC files of sequences: memory-mapped, any row at once, no decoding.

    <part>-<i>-of-<n>.arrow    Arrow's IPC file format (Feather V2), which begins with ARROW1:
                               a footer leads to each record batch
    columns     those of parquet, in the same types: input_ids, attention_mask, segment_ids,
                position_ids and, of chats, loss_mask
    lost        nothing

`pyarrow.ipc.open_file(pyarrow.memory_map(path)).get_batch(i)` reads one batch and copies nothing
where `compression` is none; pandas.read_feather, polars.read_ipc and
`datasets.load_dataset("arrow", data_files=...)` read the files too.

`datasets.load_dataset(folder)` knows train, validation and test alone: see parquet.

Source: the Arrow columnar format 1.5, "IPC File Format".
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tokflow.exports.columns import layout_of_columns, read_columns, schema_of, with_loss_mask
from tokflow.exports.format import Arrays, Counts, Format, fixed
from tokflow.exports.parquet_ import COLUMNS
from tokflow.exports.part import Part
from tokflow.exports.row_files import (
    TOKENS_PER_GROUP,
    file_names,
    named_files,
    rows_per_file,
    write_tables,
)
from tokflow.exports.shards import rows_within
from tokflow.store.config import Config, Count
from tokflow.store.manifest import Manifest


class ArrowOptions(Config):
    """Options of the arrow format."""

    megabytes_per_file: Count = 500
    """Size of a shard, counted as 4 bytes per token; uncompressed the file has 13 or 14."""
    sequences_per_file: Count | None = None
    """Sequences per shard; given instead of `megabytes_per_file`."""
    sequences_per_batch: Count = 1_000
    """Rows of a record batch; fewer where they would hold more than four million tokens."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Codec of the buffers; what is compressed is no longer memory-mapped but decompressed."""


def write(parts: Sequence[Part], options: ArrowOptions, folder: Path) -> Counts:
    """Write the shards of each part; a part without a row has none."""
    counts: Counts = {}
    for part in parts:
        counts |= _write_part(part, options, folder)
    return counts


def _write_part(part: Part, options: ArrowOptions, folder: Path) -> Counts:
    per_file = rows_per_file(options, part, where="arrow")
    names = file_names(part, per_file, ".arrow")
    schema = schema_of(with_loss_mask(COLUMNS, part))
    codec = None if options.compression == "none" else options.compression
    ipc = pa.ipc.IpcWriteOptions(compression=codec)
    # Whole batches at a time, so that the bytes do not depend on what was read together.
    at_once = min(options.sequences_per_batch, rows_within(TOKENS_PER_GROUP, part.sequence_length))
    return write_tables(
        part,
        schema,
        lambda number: pa.ipc.new_file(str(folder / names[number]), schema, options=ipc),
        per_file=per_file,
        at_once=at_once,
    )


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the sequences of a part, a record batch at a time, memory-mapped where not
    compressed; each field (rows, sequence_length)."""
    for name in named_files(manifest, part, ".arrow"):
        with pa.memory_map(str(folder / name)) as mapped, pa.ipc.open_file(mapped) as file:
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                yield read_columns(pa.Table.from_batches([batch]), manifest)


FORMAT = Format(
    description="Arrow: <part>-<i>-of-<n>.arrow, IPC files with the columns of parquet",
    options=ArrowOptions,
    layout=fixed(layout_of_columns(COLUMNS)),
    write=write,
    read=read,
)

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

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tokflow.exports.columns import layout_of_columns, read_columns, schema_of, with_loss_mask
from tokflow.exports.format import Arrays, Format, fixed
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.exports.sequence_files import (
    TOKENS_PER_BATCH,
    FileSizeOptions,
    names_of_n,
    paths_of_n,
    sequences_per_file,
    sequences_within,
    write_tables,
)
from tokflow.store.config import Count

COLUMNS = ("attention_mask", "segment_ids", "position_ids")


class ArrowOptions(FileSizeOptions):
    """Options of the arrow format."""

    sequences_per_batch: Count = 1_000
    """Rows of a record batch; fewer where they would hold more than four million tokens."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Codec of the buffers; what is compressed is no longer memory-mapped but decompressed."""


def write(part: Part, options: ArrowOptions, folder: Path) -> None:
    """Write the shards of a part."""
    schema = schema_of(with_loss_mask(COLUMNS, part))
    codec = None if options.compression == "none" else options.compression
    ipc = pa.ipc.IpcWriteOptions(compression=codec)
    per_file = sequences_per_file(options, part, where="arrow")
    most = sequences_within(TOKENS_PER_BATCH, part.sequence_length)
    write_tables(
        part,
        schema,
        lambda path: pa.ipc.new_file(str(path), schema, options=ipc),
        [folder / name for name in names_of_n(part, per_file, ".arrow")],
        per_file=per_file,
        at_once=min(options.sequences_per_batch, most),
    )


def read(export: Export, part: str) -> Iterator[Arrays]:
    """Yield the sequences of a part, a record batch at a time, memory-mapped where not
    compressed; each field (num_sequences, sequence_length)."""
    for path in paths_of_n(export, part, ".arrow"):
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
            for number in range(file.num_record_batches):
                yield read_columns(file.get_batch(number), export)


FORMAT = Format(
    description="Arrow: <part>-<i>-of-<n>.arrow, IPC files with the columns of parquet",
    options=ArrowOptions,
    layout=fixed(layout_of_columns(COLUMNS)),
    write=write,
    read=read,
)

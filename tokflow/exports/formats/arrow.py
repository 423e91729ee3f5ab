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

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tokflow.exports.columns import (
    RowOptions,
    batches_of_tables,
    columns_read,
    layout_of_columns,
    make_columns,
    schema_of,
    sizes_in_memory,
    with_loss_mask,
    written_positions,
)
from tokflow.exports.format import Format, Portion
from tokflow.exports.kept import KeptOfSequences
from tokflow.exports.new_files import open_hashed
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.exports.token_files import (
    TOKENS_PER_BATCH,
    numbered_files,
    numbered_names,
    sequences_within,
)
from tokflow.store.config import Count


class ArrowOptions(RowOptions):
    """Arrow: <part>-<i>-of-<n>.arrow, IPC files with the columns of parquet."""

    sequences_per_batch: Count = 1_000
    """Rows of a record batch; fewer where they would hold more than four million tokens."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Codec of the buffers; what is compressed is no longer memory-mapped but decompressed."""


def write(part: Part, options: ArrowOptions, folder: Path) -> None:
    """Write the shards of a part."""
    kept = KeptOfSequences(part)
    schema = schema_of(with_loss_mask(options.columns, is_chats=part.has_loss_mask), kept.names)
    written = written_positions(part, options.padding)
    codec = None if options.compression == "none" else options.compression
    ipc = pa.ipc.IpcWriteOptions(compression=codec)
    at_once = _at_once(part.sequence_length, options)
    sizes = sizes_in_memory(part.rows, options)
    for path, batches in numbered_files(
        part, sizes, options, folder / part.name, ".arrow", at_once=at_once
    ):
        with open_hashed(path) as file, pa.ipc.new_file(file, schema, options=ipc) as writer:
            for batch in batches:
                writer.write_table(make_columns(batch, schema, written, kept))


def portions(export: Export, part: str) -> list[Portion]:
    """Return the record batches of a part, memory-mapped where they are not compressed and of one
    length."""
    options, length = export.options, export.manifest.details["sequence_length"]
    return batches_of_tables(
        export,
        numbered_names(export.manifest, part, ".arrow"),
        sizes_in_memory(export.rows(part), options),
        _batch,
        at_once=_at_once(length, options),
        is_mapped=options.compression == "none",
    )


def _at_once(sequence_length: int, options: ArrowOptions) -> int:
    most = sequences_within(TOKENS_PER_BATCH, sequence_length)
    return min(options.sequences_per_batch, most)


def _batch(path: Path, number: int, keeps: Sequence[str]) -> pa.RecordBatch:
    with pa.memory_map(str(path)) as mapped:
        with pa.ipc.open_file(mapped) as file:
            numbers = [*map(file.schema.get_field_index, columns_read(file.schema.names, keeps))]
        options = pa.ipc.IpcReadOptions(included_fields=numbers)
        with pa.ipc.open_file(mapped, options=options) as file:
            return file.get_batch(number)


FORMAT = Format(
    ArrowOptions,
    lambda options: layout_of_columns(options.columns),
    write,
    portions,
    sizes=sizes_in_memory,
)

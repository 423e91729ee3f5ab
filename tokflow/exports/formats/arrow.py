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

from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tokflow.exports.columns import (
    RowOptions,
    columns_read,
    layout_of_columns,
    make_columns,
    portion_of_batch,
    read_columns,
    schema_of,
    with_loss_mask,
    written_positions,
)
from tokflow.exports.format import Arrays, Format, Portion
from tokflow.exports.kept import KeptOfSequences
from tokflow.exports.new_files import open_hashed
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.exports.sequence_files import (
    TOKENS_PER_BATCH,
    files_by_size,
    paths_by_size,
    sequences_per_file,
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
    schema = schema_of(with_loss_mask(options.columns, part), kept.names)
    written = written_positions(part, options.padding)
    codec = None if options.compression == "none" else options.compression
    ipc = pa.ipc.IpcWriteOptions(compression=codec)
    most = sequences_within(TOKENS_PER_BATCH, part.sequence_length)
    at_once = min(options.sequences_per_batch, most)
    for path, batches in files_by_size(
        part, options, folder / part.name, ".arrow", at_once=at_once
    ):
        with open_hashed(path) as file, pa.ipc.new_file(file, schema, options=ipc) as writer:
            for batch in batches:
                writer.write_table(make_columns(batch, schema, written, kept))


def portions(export: Export, part: str) -> list[Portion]:
    """Return the record batches of a part, memory-mapped where they are not compressed and of one
    length."""
    found, is_compressed = [], export.options.compression != "none"
    for path in paths_by_size(export, part, ".arrow"):
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
            if not is_compressed:
                batches = map(file.get_batch, range(file.num_record_batches))
                found += [portion_of_batch(path, batch, export) for batch in batches]
                continue
            # Of each batch the last column alone, since all that is read is decompressed.
            last = pa.ipc.IpcReadOptions(included_fields=[len(file.schema) - 1])
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped, options=last) as file:
            for number in range(file.num_record_batches):
                load = partial(_load, path, number, export)
                found.append(Portion(path, file.get_batch(number).num_rows, load))
    return found


def _load(path: Path, number: int, export: Export) -> Arrays:
    with pa.memory_map(str(path)) as mapped:
        with pa.ipc.open_file(mapped) as file:
            columns = columns_read(file.schema.names, export.manifest.details["keeps"])
            numbers = [*map(file.schema.get_field_index, columns)]
        options = pa.ipc.IpcReadOptions(included_fields=numbers)
        with pa.ipc.open_file(mapped, options=options) as file:
            return read_columns(file.get_batch(number), export)


FORMAT = Format(
    ArrowOptions,
    lambda options: layout_of_columns(options.columns),
    write,
    portions,
    sequences_per_file=sequences_per_file,
)

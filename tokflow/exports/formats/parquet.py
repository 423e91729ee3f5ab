"""Parquet shards of sequences, as `datasets`, pandas and most trainers read them.

    <part>-<i>-of-<n>.parquet    `datasets.load_dataset(folder)` takes the part from the name
    input_ids       list<int32>, sequence_length long unless `padding` is another
    attention_mask  list<int8>   1 at tokens, 0 at padding; unless it is left out
    segment_ids     list<int32>  1, 2, ... in each row; 0 is padding
    position_ids    list<int32>  0 at each segment's first token
    loss_mask       list<int8>   of chats alone: 1 at loss tokens, 0 at others; of other
                                 documents every token is one, as attention_mask says
    url             string       and whatever else `documents.keep_columns` names, where the
                                 strategy is one_document; null beside such a part
    lost            nothing

Row groups are small, so that a loader can start anywhere at little cost.

`datasets.load_dataset(folder)` knows the parts train, validation and test, and takes train-b or
train_b for train too. Say which files are which where parts are called otherwise:
`load_dataset("parquet", data_files={"train": "train-[0-9]*", "train_b": "train-b-[0-9]*"})`.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tokflow.exports.columns import (
    OF_IDS,
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
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.exports.token_files import (
    TOKENS_PER_BATCH,
    numbered_files,
    numbered_names,
    sequences_within,
)
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Count


class ParquetOptions(RowOptions):
    """Parquet: <part>-<i>-of-<n>.parquet with input_ids, attention_mask, segment_ids, position_ids
    and, of chats, loss_mask."""

    sequences_per_group: Count = 1_000
    """Rows of a row group; fewer where they would hold more than four million tokens."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Codec of the columns."""


def write(part: Part, options: ParquetOptions, folder: Path) -> None:
    """Write the shards of a part."""
    num = at_once(part.sequence_length, options, most=TOKENS_PER_BATCH)
    sizes, stem = sizes_in_memory(part.rows, options), folder / part.name
    files = numbered_files(part, sizes, options, stem, ".parquet", at_once=num)
    write_groups(files, with_loss_mask(options.columns, is_chats=part.has_loss_mask), part, options)


def write_groups(
    files: Iterable[tuple[Path, Iterable[Sequences]]],
    columns: Sequence[str],
    part: Part,
    options: ParquetOptions,
) -> None:
    """Write the columns of a part's sequences into files; those that come at once are a row
    group."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    kept = KeptOfSequences(part)
    schema = schema_of(columns, kept.names)
    # Ids hardly repeat within a page; the other columns are nearly all repetition.
    repeating = [f"{name}.list.element" for name in columns if name not in OF_IDS]
    settings: dict[str, Any] = {"use_dictionary": [*repeating, *kept.names]}
    settings["write_statistics"] = False
    settings["compression"] = options.compression
    written = written_positions(part, options.padding)
    for path, batches in files:
        with pq.ParquetWriter(path, schema, **settings) as writer:
            for batch in batches:
                writer.write_table(make_columns(batch, schema, written, kept))


def portions(export: Export, part: str) -> list[Portion]:
    """Return the row groups of a part."""
    names = numbered_names(export.manifest, part, ".parquet")
    sizes = sizes_in_memory(export.rows(part), export.options)
    return row_groups(names, sizes, export, most=TOKENS_PER_BATCH)


def row_groups(
    names: Sequence[str], sizes: Sequence[int], export: Export, *, most: int
) -> list[Portion]:
    """Return the row groups of the files of a part, of `most` tokens at most; `sizes`: sequences in
    each file. Footers are read with the first group of a file, and kept."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    footer_of = cache(pq.read_metadata)

    def group(path: Path, number: int, keeps: Sequence[str]) -> pa.Table:
        with pq.ParquetFile(path, metadata=footer_of(path)) as file:
            columns = columns_read(file.schema_arrow.names, keeps)
            return file.read_row_group(number, columns=columns)

    length = export.manifest.details["sequence_length"]
    size = at_once(length, export.options, most=most)
    return batches_of_tables(export, names, sizes, group, at_once=size, is_mapped=False)


def at_once(sequence_length: int, options: ParquetOptions, *, most: int) -> int:
    """Return how many sequences a row group has."""
    return min(sequences_within(most, sequence_length), options.sequences_per_group)


FORMAT = Format(
    ParquetOptions,
    lambda options: layout_of_columns(options.columns),
    write,
    portions,
    sizes=sizes_in_memory,
)

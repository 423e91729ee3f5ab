"""Parquet shards of sequences, as `datasets`, pandas and most trainers read them.

    <part>-<i>-of-<n>.parquet    `datasets.load_dataset(folder)` takes the part from the name
    input_ids       list<int32>, sequence_length long
    attention_mask  list<int8>   1 at tokens, 0 at padding
    segment_ids     list<int32>  1, 2, ... in each row; 0 is padding
    position_ids    list<int32>  0 at each segment's first token
    loss_mask       list<int8>   of chats alone: 1 at loss tokens, 0 at others; of other
                                 documents every token is one, as attention_mask says
    lost            nothing

Row groups are small, so that a loader can start anywhere at little cost.

`datasets.load_dataset(folder)` knows the parts train, validation and test, and takes train-b or
train_b for train too. Say which files are which where parts are called otherwise:
`load_dataset("parquet", data_files={"train": "train-[0-9]*", "train_b": "train-b-[0-9]*"})`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

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

OF_IDS = ("input_ids", "labels")
"""Columns of token ids."""


class ParquetOptions(FileSizeOptions):
    """Options of the parquet format."""

    sequences_per_group: Count = 1_000
    """Rows of a row group; fewer where they would hold more than four million tokens."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Codec of the columns."""


def write(part: Part, options: ParquetOptions, folder: Path) -> None:
    """Write the shards of a part."""
    columns = with_loss_mask(COLUMNS, part)
    per_file = sequences_per_file(options, part, where="parquet")
    paths = [folder / name for name in names_of_n(part, per_file, ".parquet")]
    write_groups(
        part, options, columns, paths, per_file=per_file, tokens_per_group=TOKENS_PER_BATCH
    )


def write_groups(
    part: Part,
    options: ParquetOptions,
    columns: Sequence[str],
    paths: Iterable[Path],
    *,
    per_file: int,
    tokens_per_group: int,
) -> None:
    """Write the columns of a part's sequences, `tokens_per_group` at most in a row group."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    schema = schema_of(columns)
    open_writer = partial(
        pq.ParquetWriter,
        schema=schema,
        compression=options.compression,
        # Ids hardly repeat within a page; the other columns are nearly all repetition.
        use_dictionary=[f"{name}.list.element" for name in columns if name not in OF_IDS],
        write_statistics=False,
    )
    most = sequences_within(tokens_per_group, part.sequence_length)
    at_once = min(options.sequences_per_group, most)
    write_tables(part, schema, open_writer, paths, per_file=per_file, at_once=at_once)


def read(export: Export, part: str) -> Iterator[Arrays]:
    """Yield the sequences of a part, a row group at a time; (num_sequences, sequence_length)."""
    return read_groups(paths_of_n(export, part, ".parquet"), export)


def read_groups(paths: list[Path], export: Export) -> Iterator[Arrays]:
    """Yield the fields of each row group of some files of sequences."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield read_columns(file.read_row_group(group), export)


FORMAT = Format(
    description="Parquet: <part>-<i>-of-<n>.parquet with input_ids, attention_mask, segment_ids, "
    "position_ids and, of chats, loss_mask",
    options=ParquetOptions,
    layout=fixed(layout_of_columns(COLUMNS)),
    write=write,
    read=read,
)

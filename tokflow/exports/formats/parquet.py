"""Parquet shards of sequences, as `datasets`, pandas and most trainers read them.

    <part>-<i>-of-<n>.parquet    `datasets.load_dataset(folder)` takes the part from the name
    input_ids       list<int32>, sequence_length long unless `padding` is another
    attention_mask  list<int8>   1 at tokens, 0 at padding
    segment_ids     list<int32>  1, 2, ... in each row; 0 is padding
    position_ids    list<int32>  0 at each segment's first token
    loss_mask       list<int8>   of chats alone: 1 at loss tokens, 0 at others; of other
                                 documents every token is one, as attention_mask says
    url             string       and whatever else `documents.keep_columns` names, where the
                                 strategy is one_document; null beside such a part
    lost            nothing, unless `columns` leaves it out

`columns` names others, and `rename` gives them other names:

    axolotl          [attention_mask, labels] of one_document, which it packs itself and tells apart
                     by position_ids of its own; those three columns tell it that nothing is to be
                     tokenized. It packs rows of several documents as if each were one
    torchtune        [labels], input_ids renamed tokens, of one_document, for PackedDataset
    Megatron-Bridge  [next_loss_mask, seq_start_id], the first renamed loss_mask: its packed parquet

Source: axolotl 0.19.0, utils/data/wrappers.py lines 98-99 and 137-144, utils/trainer.py lines
91-127; torchtune 0.6.1, datasets/_packed.py lines 96-157; Megatron-Bridge at 067f987 (0.7.0),
data/packing/parquet.py lines 49-290, and algorithms.py lines 316-378, which shifts the loss mask.

Row groups are small, so that a loader can start anywhere at little cost. Pages end where the
content says, so that files made again share most bytes with those that the hub has, which stores
equal chunks once; a page index lets its viewer read a row of a large group.

`datasets.load_dataset(folder)` knows the parts train, validation and test, and takes train-b or
train_b for train too. Say which files are which where parts are called otherwise:
`load_dataset("parquet", data_files={"train": "train-[0-9]*", "train_b": "train-b-[0-9]*"})`.
"""

import operator
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.exports.columns import Lists, columns_in_files
from tokflow.exports.options import Column, FileName, RowOptions
from tokflow.exports.parquet_pages import parquet_file
from tokflow.exports.table_files import (
    TOKENS_PER_BATCH,
    ReadBatch,
    TableFiles,
    lists_in,
    names_in_files,
)
from tokflow.exports.token_files import sequences_within
from tokflow.store.config import Count


class ParquetOptions(RowOptions):
    """Parquet: <part>-<i>-of-<n>.parquet with input_ids, attention_mask, segment_ids, position_ids
    and, of chats, loss_mask."""

    rename: Annotated[
        dict[Column | Literal["input_ids"], FileName], Field(exclude_if=operator.not_)
    ] = Field(default_factory=dict)
    """Other names of columns in the files: `{input_ids: tokens}`."""
    sequences_per_group: Count = 1_000
    """Rows of a row group; fewer where they would hold more than four million tokens."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Codec of the columns."""

    def check(self) -> None:
        """Refuse a name that two columns have, and one for a column that is not there."""
        super().check()
        columns = columns_in_files(self, is_chats=True)
        names = names_in_files(self, columns)
        if unknown := {*self.rename} - {*columns}:
            expected, found = f"columns that there are: {', '.join(columns)}", repr(min(unknown))
        elif len({*names}) < len(names):
            expected, found = "a name of its own for each column", ", ".join(names)
        else:
            return
        remedy = "change `rename` or `columns`"
        raise ConfigError(where="rename", expected=expected, found=found, remedy=remedy)


def _reader() -> ReadBatch:
    """Return a reader of row groups; a footer is read with the first of a file, and kept."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    footer_of = cache(pq.read_metadata)

    def group(path: Path, number: int, rows: slice, columns: Sequence[str]) -> dict[str, Lists]:
        with pq.ParquetFile(path, metadata=footer_of(path)) as file:
            return lists_in(file.read_row_group(number, columns=columns), columns)

    return group


FILES = TableFiles(
    name=lambda part, number, num, options: f"{part}-{number:05d}-of-{num:05d}.parquet",
    new=lambda path, schema, options: parquet_file(path, schema, options.compression),
    reader=_reader,
    at_once=lambda rows, options: min(
        options.sequences_per_group, sequences_within(TOKENS_PER_BATCH, rows.sequence_length)
    ),
)

# Version 2: pages end where the content says, and have an index. Version 3: pages are written by
# tokflow, and end behind the same row in all columns.
FORMAT = FILES.format(ParquetOptions, version=3)

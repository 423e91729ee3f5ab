"""EasyDeL's parquet shards of sequences, a folder per part, which ParquetShardedSource reads.

    <part>/shard-<i>.parquet
    input_ids       list<int32>, sequence_length long; so are the others
    attention_mask  list<int8>   1 at tokens, 0 at padding
    segment_ids     list<int32>  1, 2, ... in each row; 0 is padding
    position_ids    list<int32>  0 at each segment's first token; unless it is left out
    labels          list<int32>  of chats alone: the token if it is a loss token, else -100;
                                 EasyDeL's trainers make completion_mask of it
    lost            nothing

EasyDeL makes Python lists of a whole row group, and begins anywhere in the group it finds that
in: hence groups are small. Name `<folder>/train/*.parquet` as data_files, with type: parquet.

Source: easydel 0.3.0, data/sources/base.py lines 192-340, data/execution/save.py lines 121-190,
trainers/supervised_fine_tuning_trainer/sft_trainer.py lines 227-272, infra/loss_utils.py 1613-1677.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from tokflow.exports.columns import layout_of_columns, schema_of
from tokflow.exports.export import Export
from tokflow.exports.format import Arrays, Format, fixed
from tokflow.exports.parquet_ import open_writer, read_groups
from tokflow.exports.part import Part
from tokflow.exports.sequence_files import sequences_per_file, sequences_within, write_tables
from tokflow.store.config import Config, Count

COLUMNS = ("attention_mask", "segment_ids")

TOKENS_PER_GROUP = 1_000_000
"""EasyDeL has some 100 bytes of Python objects for each."""


class EasydelOptions(Config):
    """Options of the easydel format."""

    position_ids: bool = True
    """Whether there is a column of them; EasyDeL counts on from 0 in each row without it."""
    megabytes_per_file: Count = 500
    """Size of a shard, counted as 4 bytes per token; the file on disk is several times smaller."""
    sequences_per_file: Count | None = None
    """Sequences per shard; given instead of `megabytes_per_file`."""
    sequences_per_group: Count = 1_000
    """Rows of a row group; fewer where they would hold more than a million tokens."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Codec of the columns."""


def write(part: Part, options: EasydelOptions, folder: Path) -> None:
    """Write the shards of a part into its folder."""
    columns = ["input_ids", *COLUMNS]
    columns += ["position_ids"] if options.position_ids else []
    columns += ["labels"] if part.has_loss_mask else []
    schema = schema_of(columns)
    most = sequences_within(TOKENS_PER_GROUP, part.sequence_length)
    write_tables(
        part,
        schema,
        partial(open_writer, schema=schema, compression=options.compression),
        lambda number: folder / _name(part.name, number),
        per_file=sequences_per_file(options, part, where="easydel"),
        at_once=min(options.sequences_per_group, most),
    )


def _name(part: str, number: int) -> str:
    return f"{part}/shard-{number:05d}.parquet"


def read(export: Export, part: str) -> Iterator[Arrays]:
    """Yield the sequences of a part, a row group at a time; (num_sequences, sequence_length)."""
    return read_groups(export.numbered(lambda number: _name(part, number)), export)


FORMAT = Format(
    description="EasyDeL: <part>/shard-<i>.parquet with input_ids, attention_mask, segment_ids, "
    "position_ids and, of chats, labels",
    options=EasydelOptions,
    layout=fixed(layout_of_columns(COLUMNS)),
    write=write,
    read=read,
)

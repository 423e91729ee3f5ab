"""EasyDeL's parquet shards of sequences, a folder per part, which ParquetShardedSource reads.

    <part>/shard-<i>.parquet
    input_ids       list<int32>, sequence_length long unless `padding` is another; so are the others
    attention_mask  list<int8>   1 at tokens, 0 at padding; unless it is left out
    segment_ids     list<int32>  1, 2, ... in each row; 0 is padding
    position_ids    list<int32>  0 at each segment's first token; unless it is left out
    labels          list<int32>  of chats alone: the token if it is a loss token that begins no
                                 segment, else -100; EasyDeL's trainers make completion_mask of it
    url             string       and whatever else `documents.keep_columns` names, where the
                                 strategy is one_document; null beside such a part
    lost            nothing

EasyDeL makes Python lists of a whole row group, and begins anywhere in the group it finds that
in: hence groups are small. Name `<folder>/train/*.parquet` as data_files, with type: parquet.

EasyDeL's packing `greedy` is `strategy: concat` here: documents end to end, each ended by EOS, cut
where a row is full. Its `first_fit` sorts what it buffers: `best_fit` is nearest to it.

Source: easydel 0.3.0, data/sources/base.py lines 192-340, data/execution/save.py lines 121-190,
trainers/supervised_fine_tuning_trainer/sft_trainer.py lines 227-272, infra/loss_utils.py 1613-1677.
"""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tokflow.exports.formats import parquet
from tokflow.exports.options import USUAL_COLUMNS, FileSizeOptions
from tokflow.exports.token_files import sequences_within
from tokflow.store.config import Count

TOKENS_PER_GROUP = 1_000_000
"""EasyDeL has some 100 bytes of Python objects for each."""


class EasydelOptions(FileSizeOptions):
    """EasyDeL: <part>/shard-<i>.parquet with input_ids, attention_mask, segment_ids, position_ids
    and, of chats, labels."""

    mask_column: ClassVar[str] = "labels"

    attention_mask: Annotated[bool, Field(exclude_if=bool)] = True
    """True: there is a column of them; without it `segment_ids` tell tokens from padding."""
    position_ids: bool = True
    """True: there is a column of them; EasyDeL counts on from 0 in each row without it."""
    sequences_per_group: Count = 1_000
    """Rows of a row group; fewer where they would hold more than a million tokens."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Codec of the columns."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns beside input_ids."""
        return tuple(name for name in USUAL_COLUMNS if getattr(self, name, True))


FILES = replace(
    parquet.FILES,
    at_once=lambda rows, options: min(
        options.sequences_per_group, sequences_within(TOKENS_PER_GROUP, rows.sequence_length)
    ),
    name=lambda part, number, *_: f"{part}/shard-{number:05d}.parquet",
)

# Version 2: labels of chats are -100 at the first token of each segment, too. Versions
# 3 and 4: as 2 and 3 of parquet.
FORMAT = FILES.format(EasydelOptions, version=4)

"""EasyDeL's parquet shards of sequences, a folder per part, which ParquetShardedSource reads.

    <part>/shard-<i>.parquet
    input_ids       list<int32>, sequence_length long unless `padding` is another; so are the others
    attention_mask  list<int8>   1 at tokens, 0 at padding; unless it is left out
    segment_ids     list<int32>  1, 2, ... in each row; 0 is padding
    position_ids    list<int32>  0 at each segment's first token; unless it is left out
    labels          list<int32>  of chats alone: the token if it is a loss token, else -100;
                                 EasyDeL's trainers make completion_mask of it
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

from pathlib import Path

from tokflow.exports.columns import layout_of_columns, sequence_bytes, sizes_of_rows
from tokflow.exports.format import Format, Portion
from tokflow.exports.formats.parquet import ParquetOptions, at_once, row_groups, write_groups
from tokflow.exports.options import PartRows
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.exports.token_files import numbered_files, numbered_names
from tokflow.store.config import Count

TOKENS_PER_GROUP = 1_000_000
"""EasyDeL has some 100 bytes of Python objects for each."""


class EasydelOptions(ParquetOptions):
    """EasyDeL: <part>/shard-<i>.parquet with input_ids, attention_mask, segment_ids, position_ids
    and, of chats, labels."""

    position_ids: bool = True
    """True: there is a column of them; EasyDeL counts on from 0 in each row without it."""
    sequences_per_group: Count = 1_000
    """Rows of a row group; fewer where they would hold more than a million tokens."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns beside input_ids."""
        left_out = () if self.position_ids else ("position_ids",)
        return tuple(name for name in super().columns if name not in left_out)


def write(part: Part, options: EasydelOptions, folder: Path) -> None:
    """Write the shards of a part into its folder."""
    num = at_once(part.sequence_length, options, most=TOKENS_PER_GROUP)
    sizes, stem = _sizes(part.rows, options), folder / part.name / "shard"
    files = numbered_files(part, sizes, options, stem, ".parquet", at_once=num, has_total=False)
    write_groups(files, _columns(options, is_chats=part.has_loss_mask), part, options)


def _columns(options: EasydelOptions, *, is_chats: bool) -> tuple[str, ...]:
    return ("input_ids", *options.columns, *(["labels"] if is_chats else []))


def _sizes(rows: PartRows, options: EasydelOptions) -> list[int]:
    columns = _columns(options, is_chats=rows.has_loss_mask)
    return sizes_of_rows(rows, options, sequence_bytes(columns, rows.sequence_length))


def portions(export: Export, part: str) -> list[Portion]:
    """Return the row groups of a part."""
    names = numbered_names(export.manifest, f"{part}/shard", ".parquet")
    sizes = _sizes(export.rows(part), export.options)
    return row_groups(names, sizes, export, most=TOKENS_PER_GROUP)


FORMAT = Format(
    EasydelOptions,
    lambda options: layout_of_columns(options.columns),
    write,
    portions,
    sizes=_sizes,
)

"""EasyDeL's source of parquet shards, from the beginning and from any row, and its writer."""

from pathlib import Path

import numpy as np
from easydel.data import ParquetShardedSource
from easydel.data.core.protocols import ShardedDataSource
from easydel.data.execution.save import ParquetWriter
from peer_command import run

NAMES = {"input_ids": "rows", "attention_mask": "is_token"}


def read(folder, part, *, start_at=0, is_ragged=False):
    """Return the rows of all shards; of each the first `start_at` are left out.

    is_ragged: each column end to end, and as `<name>.lengths` what each row has.
    """
    source = ParquetShardedSource(str(folder / part / "*.parquet"))
    rows = [row for name in source.shard_names for row in source.open_shard_at_row(name, start_at)]
    if start_at == 0:
        assert rows == [row for name in source.shard_names for row in source.open_shard(name)]
        assert len(rows) == len(source)
    if is_ragged:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        lengths = {f"{name}.lengths": [*map(len, of)] for name, of in columns.items()}
        columns = {name: np.concatenate(of) for name, of in columns.items()}
        return {**columns, **lengths, "columns": np.array([*columns])}
    infos = [source.get_shard_info(name) for name in source.shard_names]
    return {
        **{NAMES.get(name, name): np.array([row[name] for row in rows]) for name in rows[0]},
        "rows_per_file": np.array([info.num_rows for info in infos]),
        "groups_per_file": np.array([info.num_row_groups for info in infos]),
        "names": np.array([Path(name).name for name in source.shard_names]),
    }


class Rows(ShardedDataSource):
    """Rows that are in memory."""

    shard_names = ("rows",)

    def __init__(self, rows):
        self.rows = rows

    def num_shards(self):
        return 1

    def open_shard(self, shard_name):
        yield from self.rows


def write(documents, folder):
    """Write rows, the columns of which the test gives, as EasyDeL saves a dataset."""
    columns = {name: values.tolist() for name, values in documents.items() if values.ndim == 2}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    ParquetWriter(str(folder / "train"), compression="snappy").write(Rows(rows))


if __name__ == "__main__":
    run(read=read, write=write)

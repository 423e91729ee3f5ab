from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.exports.exporting import export
from tokflow_tests.tiny import declare


def easydel_dataset(folder: Path, texts: list[str], **options: Any) -> Dataset:
    return declare(folder, {"a.jsonl": texts}, exports=[{"format": "easydel", **options}])


def test_a_part_is_a_folder_of_shards(tmp_path: Path):
    dataset = easydel_dataset(tmp_path, ["x" * 27], shard_size=5 * 68, sequences_per_group=2)
    folder, _ = export(dataset)

    shards = {path.name: pq.read_metadata(path) for path in sorted((folder / "train").iterdir())}

    assert {name: shard.num_rows for name, shard in shards.items()} == {
        "shard-00000.parquet": 5,
        "shard-00001.parquet": 2,
    }
    groups = [shards["shard-00000.parquet"].row_group(group).num_rows for group in range(3)]
    assert groups == [2, 2, 1]


def test_a_row_group_holds_fewer_rows_where_they_are_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.formats.easydel.TOKENS_PER_GROUP", 8)
    folder, _ = export(easydel_dataset(tmp_path, ["x" * 19]))

    metadata = pq.read_metadata(folder / "train" / "shard-00000.parquet")

    assert [metadata.row_group(group).num_rows for group in range(3)] == [2, 2, 1]


def test_of_chats_there_are_labels_and_no_mask(tmp_path: Path):
    folder, _ = export(chat_dataset(tmp_path, CHATS, exports=["easydel"]))

    names = pq.read_schema(folder / "train" / "shard-00000.parquet").names

    assert names[-1] == "labels"
    assert "loss_mask" not in names

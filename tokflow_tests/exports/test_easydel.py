from pathlib import Path

import pyarrow.parquet as pq

from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.exports.exporting import export


def test_of_chats_there_are_labels_and_no_mask(tmp_path: Path):
    folder, _ = export(chat_dataset(tmp_path, CHATS, exports=["easydel"]))

    names = pq.read_schema(folder / "train" / "shard-00000.parquet").names

    assert names[-1] == "labels"
    assert "loss_mask" not in names

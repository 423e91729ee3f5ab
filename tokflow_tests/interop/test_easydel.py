from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.interop.harness import known_dataset, read_with, write_with
from tokflow_tests.making import build, parts

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_easydel_reads_every_row_of_every_shard(ids: Any, tmp_path: Path):
    options = {"sequences_per_file": 7, "sequences_per_group": 3}
    known = known_dataset(tmp_path, "easydel", ids=ids, **options)

    for part in ("train", "validation"):
        found = read_with("easydel", known.folder, part)

        rows = known.rows(part)
        assert found["input_ids"].tolist() == rows["token_ids"].tolist()
        assert found["segment_ids"].tolist() == rows["segment_ids"].tolist()
        assert found["position_ids"].tolist() == rows["position_ids"].tolist()
        assert found["attention_mask"].tolist() == (rows["segment_ids"] != 0).tolist()
        assert found["names"].tolist() == [
            f"shard-{number:05d}.parquet" for number in range(-(-len(rows["token_ids"]) // 7))
        ]
        assert (found["rows_per_file"][:-1] == 7).all()
        assert (found["groups_per_file"][:-1] == 3).all()


def test_easydel_begins_at_any_row(tmp_path: Path):
    known = known_dataset(tmp_path, "easydel", sequences_per_group=3)

    found = read_with("easydel", known.folder, "train", start_at=5)

    assert found["input_ids"].tolist() == known.rows("train")["token_ids"][5:].tolist()


def test_easydel_has_labels_where_the_assistant_speaks(tmp_path: Path):
    dataset = chat_dataset(tmp_path, CHATS, exports=["easydel"])
    folder = build(dataset).export("easydel").output.folder

    found = read_with("easydel", folder, "train")

    is_learnt = found["labels"] != -100
    [rows] = parts(dataset, "easydel")["train"].sequences(100)
    assert is_learnt.tolist() == rows.loss_mask.tolist()
    assert (found["labels"] == found["input_ids"])[is_learnt].all()
    assert 0 < is_learnt.sum() < found["attention_mask"].sum()


def test_what_easydel_saves_has_the_same_names_and_values(tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "easydel")
    rows = known.rows("train")
    columns = {
        "input_ids": rows["token_ids"],
        "attention_mask": (rows["segment_ids"] != 0).astype(np.int64),
        "segment_ids": rows["segment_ids"],
        "position_ids": rows["position_ids"],
    }

    write_with("easydel", [], tmp_path / "peer", arrays=columns)

    theirs = sorted((tmp_path / "peer" / "train").iterdir())
    ours = sorted((known.folder / "train").iterdir())
    assert [path.name for path in ours] == [path.name for path in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert pq.read_table(mine).to_pydict() == pq.read_table(other).to_pydict()

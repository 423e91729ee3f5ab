"""TRL trains padding-free on our rows: its collator finds each document where it is."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tokflow_tests.interop.harness import known_dataset, read_with, write_with

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    ("part", "columns"),
    [("train", ["seq_lengths"]), ("validation", ["seq_lengths", "labels"])],
)
def test_the_collator_finds_every_token_and_every_documents_start(
    columns: list[str], part: str, tmp_path: Path
):
    known = known_dataset(tmp_path, "hf_dataset", columns=columns, padding=False)

    found = read_with("trl", known.folder, part)

    rows = known.rows(part)
    is_token = rows["segment_ids"] != 0
    position_ids = rows["position_ids"][is_token]
    assert found["input_ids"].tolist() == rows["token_ids"][is_token].tolist()
    assert found["position_ids"].tolist() == position_ids.tolist()
    learnt = np.where(position_ids == 0, -100, rows["token_ids"][is_token])
    assert found["labels"].tolist() == learnt.tolist()  # TRL learns no document's first token
    starts = np.flatnonzero(position_ids == 0)
    assert found["cu_seq_lens"].tolist() == np.diff([*starts, len(position_ids)]).tolist()


def test_trls_packer_writes_the_same_columns_and_as_few_rows(tmp_path: Path):
    packing = {"strategy": "best_fit", "sequence_length": 8, "overlong": "split"}
    known = known_dataset(
        tmp_path / "ours",
        "hf_dataset",
        columns=["seq_lengths"],
        padding=False,
        attributes={"packing": packing},
    )

    write_with("trl", known.documents("train"), tmp_path / "peer", sequence_length=8)

    ours, theirs = (table_of(folder / "train") for folder in (known.folder, tmp_path / "peer"))
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    for name in ("input_ids", "seq_lengths"):
        values = [
            sorted(table[name].combine_chunks().flatten().to_pylist()) for table in (ours, theirs)
        ]
        assert values[0] == values[1], name
    assert len(ours) <= len(theirs)


def table_of(folder: Path) -> pa.Table:
    state = json.loads((folder / "state.json").read_text())
    shards = [folder / each["filename"] for each in state["_data_files"]]
    return pa.concat_tables([pa.ipc.open_stream(shard.read_bytes()).read_all() for shard in shards])

import random
from pathlib import Path

import pyarrow.parquet as pq

from tokflow_tests.exports.exporting import export
from tokflow_tests.tiny import declare


def test_the_size_of_a_shard_is_that_of_its_columns_in_memory(tmp_path: Path):
    """Of a token 13 bytes in four columns, and of a row 4 bytes more in each."""
    dataset = declare(
        tmp_path,
        {"a.jsonl": ["x" * 39_999]},
        packing={"sequence_length": 1},
        exports=[{"format": "parquet", "shard_size": "1MB", "sequences_per_group": 1_000}],
    )
    folder, _ = export(dataset)

    num_rows = [pq.read_metadata(path).num_rows for path in sorted(folder.glob("train-*"))]

    assert num_rows == [34_482, 5_518]


def test_rows_before_others_leave_most_bytes_as_they_were(tmp_path: Path):
    text = random.Random(1).randbytes(500_000).hex()
    files = []
    for name, raw in (("alone", {}), ("behind", {"a.jsonl": ["x" * 999]})):
        attributes = {"packing": {"sequence_length": 1_000}, "exports": [{"format": "parquet"}]}
        dataset = declare(tmp_path / name, {**raw, "b.jsonl": [text]}, **attributes)
        files.append(export(dataset)[0] / "train-00000-of-00001.parquet")

    alone, behind = (path.read_bytes() for path in files)
    blocks = [alone[start : start + 500] for start in range(0, len(alone) - 500, 10_000)]
    column = pq.read_metadata(files[0]).row_group(0).column(0)

    assert sum(block in behind for block in blocks) > len(blocks) / 2
    assert column.has_offset_index

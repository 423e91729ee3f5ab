"""webdataset reads our shards, in the pipeline that open_lm trains from."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tokflow_tests.interop.harness import known_dataset, read_with, write_with

pytestmark = pytest.mark.interop

PARTS = ("train", "validation")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("compression", "data_key"), [("gz", "json.gz"), ("none", "json")])
@pytest.mark.parametrize("per_file", [3, 8_192])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_open_lms_pipeline_gives_every_row_in_order(
    ids: str, per_file: int, compression: str, data_key: str, part: str, tmp_path: Path
):
    known = known_dataset(
        tmp_path, "webdataset", ids=ids, compression=compression, sequences_per_file=per_file
    )

    found = read_with("webdataset", known.folder, part, data_key=data_key)

    expected = known.rows(part)["token_ids"]
    np.testing.assert_array_equal(found["rows"], expected)
    numbers = np.arange(len(expected))
    assert found["keys"].tolist() == [f"{n // per_file:08d}_{n % per_file:08d}" for n in numbers]
    assert found["shards"].tolist() == [f"shard_{n // per_file:08d}.tar" for n in numbers]
    np.testing.assert_array_equal(found["manifest"], np.bincount(numbers // per_file))


def test_rows_make_pairs_of_one_token_less_and_no_more(tmp_path: Path):
    known = known_dataset(tmp_path, "webdataset")

    pairs = read_with("webdataset", known.folder, "train", seq_len=7)["rows"]
    too_long = read_with("webdataset", known.folder, "train", seq_len=8)["rows"]

    assert len(pairs) == len(known.rows("train")["token_ids"])
    assert len(too_long) == 0


def test_the_peers_writer_makes_members_of_the_same_names_and_numbers(tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "webdataset", compression="none", sequences_per_file=4)

    write_with("webdataset", known.rows("train")["token_ids"].tolist(), tmp_path / "peer")

    shards = sorted((tmp_path / "peer").iterdir())
    assert [shard.name for shard in shards] == sorted(
        path.name for path in (known.folder / "train").glob("*.tar")
    )
    for shard in shards:
        assert members(shard) == members(known.folder / "train" / shard.name)


def members(path: Path) -> dict[str, list[int]]:
    with tarfile.open(path) as tar:
        return {member.name: json.loads(tar.extractfile(member).read()) for member in tar}

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.interop.harness import known_dataset, read_with, write_with
from tokflow_tests.making import build, parts

pytestmark = pytest.mark.interop

ALL_FIELDS = {
    "tokens": "token_ids",
    "a": "position_ids",
    "z": "segment_ids",
    "mask": "loss_mask",
}


@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_streaming_reads_every_row(ids: str, tmp_path: Path):
    known = known_dataset(tmp_path, "mds", ids=ids)

    for part in ("train", "validation"):
        found = read_with("mds", known.folder, part)

        rows = known.rows(part)
        assert list(found) == ["loss_mask", "segment_ids", "tokens"]
        assert found["tokens"].dtype == np.int32
        assert found["tokens"].tolist() == rows["token_ids"].tolist()
        assert found["segment_ids"].tolist() == rows["segment_ids"].tolist()
        assert found["loss_mask"].tolist() == (rows["segment_ids"] != 0).astype(int).tolist()


@pytest.mark.parametrize(
    "options",
    [{}, {"hashes": ["xxh64", "sha1"]}, {"compression": "zstd", "hashes": ["sha1"]}],
    ids=["plain", "hashes", "compressed"],
)
def test_streaming_reads_every_field_from_many_shards(options: dict[str, Any], tmp_path: Path):
    known = known_dataset(tmp_path, "mds", columns=ALL_FIELDS, size_limit=800, **options)
    validate = {"validate_hash": "sha1"} if "hashes" in options else {}

    found = read_with("mds", known.folder, "train", **validate)

    rows = known.rows("train")
    assert len(list((known.folder / "train").glob("shard.*"))) > 2
    assert list(found) == ["a", "mask", "tokens", "z"]
    for column, field in ALL_FIELDS.items():
        expected = rows["segment_ids"] != 0 if field == "loss_mask" else rows[field]
        assert found[column].tolist() == expected.astype(int).tolist(), column


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size_limit": 800, "hashes": ["sha1", "xxh64"]},
        {"size_limit": 800, "hashes": ["md5", "xxh3_128"], "compression": "zstd"},
        {"size_limit": 2_000, "compression": "zstd", "compression_level": 12},
    ],
    ids=["plain", "hashes", "compressed", "level"],
)
def test_the_files_are_those_that_mdswriter_writes(options: dict[str, Any], tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "mds", columns=ALL_FIELDS, **options)
    rows = known.rows("train")
    arrays = {
        "tokens": rows["token_ids"].astype(np.int32),
        "a": rows["position_ids"].astype(np.int32),
        "z": rows["segment_ids"].astype(np.int32),
        "mask": (rows["segment_ids"] != 0).astype(np.uint8),
    }
    columns = {name: f"ndarray:{array.dtype}:8" for name, array in arrays.items()}
    peer = tmp_path / "peer"

    given = dict(options)
    if (level := given.pop("compression_level", None)) is not None:
        given["compression"] = f"zstd:{level}"
    write_with("mds", [], peer, arrays=arrays, columns=columns, **given)

    ours = known.folder / "train"
    assert {path.name for path in ours.iterdir()} == {path.name for path in peer.iterdir()}
    for path in peer.iterdir():
        assert (ours / path.name).read_bytes() == path.read_bytes(), path.name


def test_streaming_reads_the_loss_mask_of_chats(tmp_path: Path):
    columns = {"tokens": "token_ids", "loss_mask": "loss_mask"}
    dataset = chat_dataset(tmp_path, CHATS, exports=[{"format": "mds", "columns": columns}])
    folder = build(dataset).export("mds").output.folder

    found = read_with("mds", folder, "train")

    [rows] = parts(dataset, "mds")["train"].sequences(1_000)
    assert found["tokens"].tolist() == rows.token_ids.tolist()
    assert found["loss_mask"].astype(bool).tolist() == rows.loss_mask.tolist()
    assert 0 < rows.loss_mask.sum() < (rows.segment_ids != 0).sum()

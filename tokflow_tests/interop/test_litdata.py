import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.interop.harness import known_dataset, read_with, write_with

pytestmark = pytest.mark.interop

DTYPE = {"bytes": "uint16", "many": "int32"}


@pytest.mark.parametrize("with_eos", [True, False])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_litdata_reads_every_whole_block_of_the_stream(ids: str, with_eos: bool, tmp_path: Path):
    sizes = {"block_size": 9, "tokens_per_file": 30}
    known = known_dataset(tmp_path, "litdata", ids=ids, with_eos=with_eos, **sizes)

    for part in ("train", "validation"):
        found = read_with("litdata", known.folder, part, block_size=9)

        token_ids = known.token_ids(part)
        whole = token_ids[: len(token_ids) // 9 * 9].reshape(-1, 9)
        assert found["blocks"].tolist() == whole.tolist()
        assert found["iterated"].tolist() == whole.tolist()
    assert len(list((known.folder / "train").glob("*.bin"))) > 2


def test_litdata_reads_every_token_where_blocks_fill_the_chunks(tmp_path: Path):
    files = {"train-0.jsonl": ["x" * 8, "", "y" * 88], "validation-0.jsonl": ["z"]}
    options = {"block_size": 11, "tokens_per_file": 34}
    known = known_dataset(tmp_path, "litdata", files=files, **options)

    found = read_with("litdata", known.folder, "train", block_size=11)

    assert found["blocks"].reshape(-1).tolist() == known.token_ids("train").tolist()


def test_another_block_size_loses_a_rest_of_each_chunk(tmp_path: Path):
    known = known_dataset(tmp_path, "litdata", block_size=9, tokens_per_file=30)

    found = read_with("litdata", known.folder, "train", block_size=8)

    chunks = np.split(known.token_ids("train"), range(27, len(known.token_ids("train")), 27))
    rows = [chunk[: len(chunk) // 8 * 8].reshape(-1, 8) for chunk in chunks]
    assert found["blocks"].tolist() == np.concatenate(rows).tolist()


@pytest.mark.parametrize(
    ("given", "codec"),
    [
        ({}, None),
        ({"compression": "zstd"}, "zstd"),
        ({"compression": "zstd", "compression_level": 9}, "zstd:9"),
    ],
)
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_the_chunks_are_those_that_litdata_writes_of_the_same_items(
    ids: str, given: dict[str, Any], codec: str | None, tmp_path: Path
):
    options = {"block_size": 9, "tokens_per_file": 30, **given}
    known = known_dataset(tmp_path / "ours", "litdata", ids=ids, **options)
    offsets = known.offsets("train")
    edges = np.unique([*offsets, *range(0, offsets[-1], 27)])
    items = [run.tolist() for run in np.split(known.token_ids("train"), edges[1:-1])]
    peer = tmp_path / "peer"

    write_with("litdata", items, peer, dtype=DTYPE[ids], chunk_size=27, compression=codec)

    ours = known.folder / "train"
    assert {path.name for path in ours.iterdir()} == {path.name for path in peer.iterdir()}
    for path in peer.glob("*.bin"):
        assert (ours / path.name).read_bytes() == path.read_bytes(), path.name
    index = json.loads((ours / "index.json").read_text())
    expected = json.loads((peer / "index.json").read_text())
    assert {**index, "updated_at": expected["updated_at"]} == expected


def test_litdata_reads_compressed_chunks(tmp_path: Path):
    options = {"block_size": 9, "tokens_per_file": 30, "compression": "zstd"}
    known = known_dataset(tmp_path, "litdata", **options)

    found = read_with("litdata", known.folder, "train", block_size=9)

    token_ids = known.token_ids("train")
    assert found["blocks"].tolist() == token_ids[: len(token_ids) // 9 * 9].reshape(-1, 9).tolist()

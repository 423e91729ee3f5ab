"""numpy, and build-nanogpt, which has no package: how it finds and writes its shards."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.interop.harness import known_dataset

pytestmark = pytest.mark.interop

PARTS = ["train", "validation"]
DTYPES = {"bytes": np.uint16, "many": np.uint32}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("ids", DTYPES)
def test_numpy_maps_a_stream_and_its_offsets(ids: Any, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "npy", ids=ids)

    tokens = np.load(known.folder / f"{part}.npy", mmap_mode="r")
    offsets = np.load(known.folder / f"offsets/{part}.npy", mmap_mode="r")

    assert tokens.dtype == DTYPES[ids]
    assert tokens.tolist() == known.token_ids(part).tolist()
    assert offsets.tolist() == known.offsets(part).tolist()
    documents = [tokens[start:stop].tolist() for start, stop in pairwise(offsets)]
    assert documents == known.documents(part)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("ids", DTYPES)
def test_numpy_maps_rows_and_what_belongs_to_them(ids: Any, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "npy", ids=ids, layout="sequences")

    for field, expected in known.rows(part).items():
        path = known.folder / ("" if field == "token_ids" else field) / f"{part}.npy"
        rows = np.load(path, mmap_mode="r")
        np.testing.assert_array_equal(rows, expected, err_msg=field)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("ids", DTYPES)
def test_the_files_are_those_that_numpy_saves(ids: Any, part: str, tmp_path: Path):
    stream = known_dataset(tmp_path / "stream", "npy", ids=ids)
    rows = known_dataset(tmp_path / "rows", "npy", ids=ids, layout="sequences")
    arrays = rows.rows(part)
    saved = {
        stream.folder / f"{part}.npy": stream.token_ids(part).astype(DTYPES[ids]),
        stream.folder / f"offsets/{part}.npy": stream.offsets(part),
        rows.folder / f"{part}.npy": arrays["token_ids"].astype(DTYPES[ids]),
        rows.folder / f"segment_ids/{part}.npy": arrays["segment_ids"].astype(np.int32),
        rows.folder / f"position_ids/{part}.npy": arrays["position_ids"].astype(np.int32),
    }

    for path, array in saved.items():
        np.save(tmp_path / "saved.npy", array)

        assert path.read_bytes() == (tmp_path / "saved.npy").read_bytes(), path.name


@pytest.mark.parametrize("part", PARTS)
def test_build_nanogpt_finds_the_shards_of_a_part_by_its_name(part: str, tmp_path: Path):
    options = {"prefix": "edufineweb", "eos": "first", "tokens_per_file": 20}
    known = known_dataset(tmp_path, "npy", **options)
    split = {"train": "train", "validation": "val"}[part]

    # As train_gpt2.py does.
    shards = sorted(path.name for path in known.folder.iterdir() if split in path.name)
    loaded = [np.load(known.folder / name).astype(np.int32) for name in shards]

    assert [name[:-11] for name in shards] == [f"edufineweb_{split}"] * len(shards)
    assert len(shards) > 1
    expected = [[known.eos_id, *document[:-1]] for document in known.documents(part)]
    assert np.concatenate(loaded).tolist() == [token for ids in expected for token in ids]
    assert all(tokens[0] == known.eos_id for tokens in loaded)

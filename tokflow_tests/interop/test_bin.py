"""nanoGPT has no package: its ways of reading and writing, in a few lines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.interop.harness import known_dataset

pytestmark = pytest.mark.interop

DTYPES = {"bytes": np.uint16, "many": np.uint32}
NAMES = {"train": "train.bin", "validation": "val.bin"}


def write_as_prepare(documents: list[list[int]], path: Path, dtype: Any) -> None:
    """Fill a memory map batch by batch, as data/openwebtext/prepare.py does."""
    tokens = np.memmap(path, dtype=dtype, mode="w+", shape=(sum(map(len, documents)),))
    position = 0
    for first in range(0, len(documents), 2):
        batch = np.concatenate([np.array(ids, dtype) for ids in documents[first : first + 2]])
        tokens[position : position + len(batch)] = batch
        position += len(batch)
    tokens.flush()


@pytest.mark.parametrize("part", NAMES)
@pytest.mark.parametrize("ids", DTYPES)
def test_nanogpt_maps_every_token(ids: Any, part: str, tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "bin", ids=ids)

    tokens = np.memmap(known.folder / NAMES[part], dtype=DTYPES[ids], mode="r")

    assert tokens.tolist() == known.token_ids(part).tolist()
    ends = np.flatnonzero(tokens == known.eos_id) + 1
    assert [0, *ends.tolist()] == known.offsets(part).tolist()


@pytest.mark.parametrize("part", NAMES)
@pytest.mark.parametrize("ids", DTYPES)
def test_the_file_is_the_one_that_nanogpt_prepares(ids: Any, part: str, tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "bin", ids=ids)

    write_as_prepare(known.documents(part), tmp_path / "theirs.bin", DTYPES[ids])

    ours = known.folder / NAMES[part]
    assert ours.read_bytes() == (tmp_path / "theirs.bin").read_bytes()
    assert not (known.folder / "meta.pkl").exists()

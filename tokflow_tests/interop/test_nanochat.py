"""Our shards are read as nanochat reads them: by rank, a row group at a time, with pyarrow."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tokflow_tests.interop.harness import BYTES, known_dataset

pytestmark = pytest.mark.interop

OPTIONS = {"documents_per_group": 2, "characters_per_file": 10}


def read_batches(folder: Path, split: str, *, rank: int, world_size: int) -> Iterator[list[str]]:
    """Yield what one rank reads: the last file in sorted order is val, the others are train."""
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".parquet")
    for path in paths[:-1] if split == "train" else paths[-1:]:
        file = pq.ParquetFile(path)
        for group in range(rank, file.num_row_groups, world_size):
            yield file.read_row_group(group).column("text").to_pylist()


def texts_of(part: str) -> list[str]:
    return [text for name in sorted(BYTES) if name.startswith(part) for text in BYTES[name]]


@pytest.mark.parametrize(("part", "split"), [("train", "train"), ("validation", "val")])
@pytest.mark.parametrize("world_size", [1, 2])
def test_all_ranks_together_read_every_text_once(
    world_size: int, part: str, split: str, tmp_path: Path
):
    known = known_dataset(tmp_path, "nanochat", **OPTIONS)

    batches = [
        [*read_batches(known.folder / "base_data", split, rank=rank, world_size=world_size)]
        for rank in range(world_size)
    ]

    assert all(batches)
    found = [text for of_rank in batches for batch in of_rank for text in batch]
    assert sorted(found) == sorted(texts_of(part))
    if world_size == 1:
        assert found == texts_of(part)


def test_its_texts_have_the_tokens_of_the_other_exports(tmp_path: Path):
    known = known_dataset(tmp_path, "nanochat")

    [*batches] = read_batches(known.folder / "base_data", "train", rank=0, world_size=1)

    tokens = [token for batch in batches for text in batch for token in (*text.encode(), 256)]
    assert tokens == known.token_ids("train").tolist()

from functools import partial
from pathlib import Path

import numpy as np

from tokflow_tests.exports.exporting import export_as, read
from tokflow_tests.outputs import content
from tokflow_tests.tiny import EOS

TWO_PARTS = {"split": {"parts": {"train": {"documents": 2}, "validation": {"start": 2}}}}
OF_TOKFLOW = {"_tokflow/index.parquet", "_tokflow/manifest.json"}

export = partial(export_as, "npy")


def names_of(folder: Path) -> list[str]:
    return sorted(set(content(folder)) - OF_TOKFLOW)


def test_a_stream_is_one_array_with_offsets_beside_it(tmp_path: Path):
    folder, _ = export(tmp_path, {"a.jsonl": ["ab", "", "c"]}, attributes=TWO_PARTS)

    tokens = np.load(folder / "train.npy", mmap_mode="r")

    assert names_of(folder) == [
        "offsets/train.npy",
        "offsets/validation.npy",
        "train.npy",
        "validation.npy",
    ]
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [*b"ab", EOS, EOS]
    assert np.load(folder / "offsets/train.npy", mmap_mode="r").tolist() == [0, 3, 4]


def test_build_nanogpt_gets_eos_before_each_document(tmp_path: Path):
    options = {"prefix": "edufineweb", "eos": "first", "shard_size": 8}
    folder, manifest = export(tmp_path, {"a.jsonl": ["ab", "c", "d"]}, **options)

    # As its train_gpt2.py lists them: every name with the split in it.
    shards = sorted(path.name for path in folder.iterdir() if "train" in path.name)

    assert shards == ["edufineweb_train_000000.npy", "edufineweb_train_000001.npy"]
    assert np.load(folder / shards[0]).tolist() == [EOS, *b"ab"]
    assert np.load(folder / shards[1]).tolist() == [EOS, *b"c", EOS, *b"d"]
    assert [of["offsets"].tolist() for of in read(folder, manifest)] == [[0, 3], [0, 2, 4]]

import gc
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from tokflow.loaders.rows import Rows, open_rows
from tokflow.loaders.token_arrays import open_tokens
from tokflow.pipeline.dataset import Dataset
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.tiny import build, declare, tokenize

SHARDED = {"shard_size": 40}
EXPORTS = [
    {"format": "npy", **SHARDED},
    {"format": "bin"},
    {"format": "levanter"},
    {"format": "parquet", "shards": 8},
    {"format": "webdataset"},
]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Chats, each with a loss mask, in several files of an export."""
    dataset = chat_dataset(tmp_path_factory.mktemp("memory"), CHATS, exports=EXPORTS)
    build(dataset)
    return dataset


def rows_of(dataset: Dataset, name: str, **options: object) -> Rows:
    length = None if name in ("parquet", "webdataset") else 8
    return open_rows(dataset.folder / "exports" / name, sequence_length=length, **options)


def same(one: Rows, other: Rows) -> None:
    found, expected = one[:], other[:]
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("name", [str(of["format"]) for of in EXPORTS])
def test_rows_in_memory_are_those_of_the_files(name: str, chats: Dataset):
    rows = rows_of(chats, name, in_memory=True)

    same(rows, rows_of(chats, name))

    assert rows.source.fingerprint == rows_of(chats, name).source.fingerprint
    [portion] = rows.source.portions._portions
    assert not portion.read()["token_ids"].flags.writeable


@pytest.mark.parametrize("name", ["bin", "parquet"])
def test_rows_that_are_let_go_of_are_gone_at_once(name: str, chats: Dataset):
    gc.disable()  # which would end cycles, and the image that one of them keeps, at any time
    try:
        rows = rows_of(chats, name, in_memory=True)
        rows[0]
        kept = weakref.ref(rows.source.portions)
        del rows
        assert kept() is None
    finally:
        gc.enable()


def test_parts_of_one_size_have_an_image_each(tmp_path: Path):
    parts = {"train": {"documents": 1}, "test": {"start": 1, "documents": 1}}
    dataset = declare(
        tmp_path, {"a.jsonl": ["abc", "def"]}, split={"parts": parts}, exports=["npy"]
    )
    build(dataset)

    held = [open_rows(dataset.folder / "exports/npy", part, 3, in_memory=True) for part in parts]

    assert [rows[0]["input_ids"].tolist() for rows in held] == [[*b"abc"], [*b"def"]]
    assert len({rows.source.fingerprint for rows in held}) == 2


def test_a_token_store_is_taken_into_memory_too(chats: Dataset):
    folder = tokenize(chats).folder

    same(
        open_rows(folder, sequence_length=8, in_memory=True),
        open_rows(folder, sequence_length=8),
    )


def test_tokens_in_memory_are_those_of_the_files(chats: Dataset):
    path = chats.folder / "exports/levanter"
    tokens, expected = open_tokens(path, in_memory=True), open_tokens(path)

    assert tokens[:].tolist() == expected[:].tolist()
    assert tokens.offsets.tolist() == expected.offsets.tolist()
    assert pickle.loads(pickle.dumps(tokens)).in_memory


READER = """
import pickle, sys
rows = pickle.load(sys.stdin.buffer)
[portion] = rows.source.portions._portions
values = portion.read()["token_ids"]
inodes = {line.split()[4] for line in open("/proc/self/maps") if "memfd:tokflow" in line}
print(rows[0]["input_ids"].tolist(), *inodes)
"""


def test_a_process_that_gets_the_rows_pickled_has_the_same_image(chats: Dataset):
    rows = rows_of(chats, "parquet", in_memory=True)
    maps = Path("/proc/self/maps").read_text().splitlines()
    read = subprocess.run(
        [sys.executable, "-c", READER], input=pickle.dumps(rows), capture_output=True, check=True
    )

    [printed, inode] = read.stdout.decode().rsplit(maxsplit=1)
    assert printed == str(rows[0]["input_ids"].tolist())
    assert any(line.split()[4] == inode for line in maps if "memfd:tokflow" in line)

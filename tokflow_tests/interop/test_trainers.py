"""Trainers that are no packages read and write our files: their ways of it, in a few lines.

nanoGPT maps train.bin and val.bin; llm.c and modded-nanogpt read shards with a header and EOS
first; build-nanogpt finds .npy by name; a dataset class, written here from its description,
reads dumps.
"""

import json
import pickle
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tokflow_tests.interop.harness import PARTS, Known, known_dataset

pytestmark = pytest.mark.interop

VAL = {"train": "train", "validation": "val"}

each_part = pytest.mark.parametrize("part", PARTS)
each_ids = pytest.mark.parametrize("ids", ["bytes", "many"])


def eos_first(known: Known, part: str) -> list[list[int]]:
    return [[known.eos_id, *document[:-1]] for document in known.documents(part)]


def write_as_prepare(documents: list[list[int]], path: Path, dtype: str) -> None:
    """Fill a memory map batch by batch, as nanoGPT's data/openwebtext/prepare.py does."""
    tokens = np.memmap(path, dtype=dtype, mode="w+", shape=(sum(map(len, documents)),))
    position = 0
    for first in range(0, len(documents), 2):
        batch = np.concatenate([np.array(ids, dtype) for ids in documents[first : first + 2]])
        tokens[position : position + len(batch)] = batch
        position += len(batch)
    tokens.flush()


@each_part
@each_ids
def test_nanogpt_maps_the_file_that_it_prepares(ids: str, part: str, tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "bin", ids=ids)
    ours = known.folder / f"{VAL[part]}.bin"

    write_as_prepare(known.documents(part), tmp_path / "theirs.bin", known.dtype)
    tokens = np.memmap(ours, dtype=known.dtype, mode="r")

    assert ours.read_bytes() == (tmp_path / "theirs.bin").read_bytes()
    ends = np.flatnonzero(tokens == known.eos_id) + 1
    assert [0, *ends.tolist()] == known.offsets(part).tolist()
    assert not (known.folder / "meta.pkl").exists()


LLMC = {"uint16": (20240520, 1, "H"), "uint32": (20240801, 7, "I")}
"""Magic number, version and type of a shard's numbers."""


def read_as_llmc(path: Path, dtype: str) -> list[int]:
    """Check a file as llmc/dataloader.h does, by header and size, and return its tokens."""
    magic, version, code = LLMC[dtype]
    data = path.read_bytes()
    header = struct.unpack("<256i", data[:1024])
    assert header[:2] == (magic, version)
    assert header[2] > 0
    assert not any(header[3:])
    assert len(data) == 1024 + header[2] * struct.calcsize(code)
    return list(struct.unpack(f"<{header[2]}{code}", data[1024:]))


@each_part
@each_ids
def test_the_file_is_the_one_that_llmc_writes(ids: str, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "llmc", ids=ids)
    tokens = [token for document in eos_first(known, part) for token in document]

    # As dev/data/data_common.py does.
    magic, version, code = LLMC[known.dtype]
    header = struct.pack("<256i", magic, version, len(tokens), *[0] * 253)
    written = header + struct.pack(f"<{len(tokens)}{code}", *tokens)

    ours = known.folder / f"tiny_{VAL[part]}_000000.bin"
    assert ours.read_bytes() == written
    assert read_as_llmc(ours, known.dtype) == tokens


@each_part
@each_ids
def test_llmcs_glob_finds_whole_documents_in_each_file(ids: str, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "llmc", ids=ids, prefix="fineweb", shard_size=18)

    paths = sorted(known.folder.glob(f"fineweb_{VAL[part]}_*.bin"))
    files = [np.array(read_as_llmc(path, known.dtype)) for path in paths]

    assert len(files) > 1
    assert all(tokens[0] == known.eos_id for tokens in files)
    starts = [np.flatnonzero(tokens == known.eos_id) for tokens in files]
    found = [d.tolist() for t, s in zip(files, starts, strict=True) for d in np.split(t, s)[1:]]
    assert found == eos_first(known, part)


@each_part
@each_ids
def test_numpy_maps_a_stream_and_its_offsets(ids: str, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "npy", ids=ids)

    tokens = np.load(known.folder / f"{part}.npy", mmap_mode="r")
    offsets = np.load(known.folder / f"offsets/{part}.npy", mmap_mode="r")

    documents = [tokens[start:stop].tolist() for start, stop in pairwise(offsets)]
    assert documents == known.documents(part)


@each_part
@each_ids
def test_the_files_are_those_that_numpy_saves(ids: str, part: str, tmp_path: Path):
    stream = known_dataset(tmp_path / "stream", "npy", ids=ids)
    rows = known_dataset(tmp_path / "rows", "npy", ids=ids, layout="sequences")
    arrays = rows.rows(part)
    saved = {
        stream.folder / f"{part}.npy": stream.token_ids(part).astype(stream.dtype),
        stream.folder / f"offsets/{part}.npy": stream.offsets(part),
        rows.folder / f"{part}.npy": arrays["token_ids"].astype(stream.dtype),
        rows.folder / f"segment_ids/{part}.npy": arrays["segment_ids"].astype(np.int32),
        rows.folder / f"position_ids/{part}.npy": arrays["position_ids"].astype(np.int32),
    }

    for path, array in saved.items():
        np.save(tmp_path / "saved.npy", array)

        assert path.read_bytes() == (tmp_path / "saved.npy").read_bytes(), path.name


@each_part
def test_build_nanogpt_finds_the_shards_of_a_part_by_its_name(part: str, tmp_path: Path):
    options = {"prefix": "edufineweb", "eos": "first", "shard_size": 40}
    known = known_dataset(tmp_path, "npy", **options)

    # As train_gpt2.py does.
    shards = sorted(path.name for path in known.folder.iterdir() if VAL[part] in path.name)
    loaded = [np.load(known.folder / name).astype(np.int32) for name in shards]

    assert [name[:-11] for name in shards] == [f"edufineweb_{VAL[part]}"] * len(shards)
    assert len(shards) > 1
    expected = [token for ids in eos_first(known, part) for token in ids]
    assert np.concatenate(loaded).tolist() == expected
    assert all(tokens[0] == known.eos_id for tokens in loaded)


def rows_of_dumps(folder: Path) -> list[list[int]]:
    """Return the rows of a folder of dumps: the one .json in it says how many are in each."""
    [described] = folder.glob("*.json")
    dumps = json.loads(described.read_text())
    assert {path.name for path in folder.glob("*.pkl")} == {*dumps}
    found = []
    for name, dump in dumps.items():
        rows = pickle.loads((folder / name).read_bytes())
        assert dump["num_samples"] == len(rows)
        assert dump["num_tokens"] == sum(map(len, rows))
        found += rows
    return found


@each_part
@pytest.mark.parametrize("shards", [1, 4, 10_000])
@each_ids
def test_a_trainer_reads_every_row_of_dumps(ids: str, shards: int, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "pickle", ids=ids, shards=shards)

    assert rows_of_dumps(known.folder / part) == known.rows(part)["token_ids"].tolist()


def test_short_rows_are_left_out_of_dumps(tmp_path: Path):
    packing = {"sequence_length": 8, "min_sample_length": 8}
    known = known_dataset(tmp_path, "pickle", attributes={"packing": packing})

    rows = known.rows("validation")
    is_full = (rows["segment_ids"] != 0).all(axis=1)
    assert not is_full.all()
    assert rows_of_dumps(known.folder / "validation") == rows["token_ids"][is_full].tolist()


def test_padding_of_dumps_is_the_id_asked_for(tmp_path: Path):
    known = known_dataset(tmp_path, "pickle", pad_id=-100)

    rows = known.rows("validation")
    expected = np.where(rows["segment_ids"] == 0, -100, rows["token_ids"])
    assert (expected == -100).any()
    assert rows_of_dumps(known.folder / "validation") == expected.tolist()

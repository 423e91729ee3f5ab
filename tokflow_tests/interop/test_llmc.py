"""llm.c and modded-nanogpt have no package: what their loaders check, in a few lines."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.interop.harness import Known, known_dataset

pytestmark = pytest.mark.interop

NAMES = {"train": "train", "validation": "val"}
MODELS = {"bytes": (20240520, 1, "H"), "many": (20240801, 7, "I")}


def read_as_llmc(path: Path, ids: str) -> list[int]:
    """Check a file as llmc/dataloader.h does, by header and size, and return its tokens."""
    magic, version, code = MODELS[ids]
    data = path.read_bytes()
    header = struct.unpack("<256i", data[:1024])
    assert header[:2] == (magic, version)
    assert header[2] > 0
    assert not any(header[3:])
    assert len(data) == 1024 + header[2] * struct.calcsize(code)
    return list(struct.unpack(f"<{header[2]}{code}", data[1024:]))


def write_as_llmc(tokens: list[int], path: Path, ids: str) -> None:
    """Write header and tokens as dev/data/data_common.py does."""
    magic, version, code = MODELS[ids]
    header = [magic, version, len(tokens), *[0] * 253]
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}{code}", *tokens))


def eos_first(known: Known, part: str) -> list[list[int]]:
    return [[known.eos_id, *document[:-1]] for document in known.documents(part)]


@pytest.mark.parametrize("part", NAMES)
@pytest.mark.parametrize("ids", MODELS)
def test_the_file_is_the_one_that_llmc_writes(ids: Any, part: str, tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "llmc", ids=ids)
    tokens = [token for document in eos_first(known, part) for token in document]

    write_as_llmc(tokens, tmp_path / "theirs.bin", ids)

    ours = known.folder / f"tiny_{NAMES[part]}_000000.bin"
    assert read_as_llmc(ours, ids) == tokens
    assert ours.read_bytes() == (tmp_path / "theirs.bin").read_bytes()


@pytest.mark.parametrize("part", NAMES)
@pytest.mark.parametrize("ids", MODELS)
def test_the_glob_of_a_trainer_finds_whole_documents_in_each_file(
    ids: Any, part: str, tmp_path: Path
):
    known = known_dataset(tmp_path, "llmc", ids=ids, prefix="fineweb", tokens_per_file=9)

    paths = sorted(known.folder.glob(f"fineweb_{NAMES[part]}_*.bin"))
    files = [read_as_llmc(path, ids) for path in paths]

    assert len(files) > 1
    starts = [np.flatnonzero(np.array(tokens) == known.eos_id) for tokens in files]
    found = [
        document.tolist()
        for tokens, starts_of_file in zip(files, starts, strict=True)
        for document in np.split(np.array(tokens), starts_of_file)[1:]
    ]
    assert found == eos_first(known, part)
    assert all(tokens[0] == known.eos_id for tokens in files)

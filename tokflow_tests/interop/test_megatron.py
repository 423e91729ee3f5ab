from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.interop.harness import Known, known_dataset, read_with, write_with

pytestmark = pytest.mark.interop

PARTS = ["train", "validation"]


@pytest.mark.parametrize("with_eos", [True, False])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_megatron_core_reads_every_token_and_every_document(
    ids: Any, with_eos: bool, tmp_path: Path
):
    known = known_dataset(tmp_path, "megatron", ids=ids, with_eos=with_eos)

    for part in PARTS:
        found = read_with("megatron", known.folder, part)

        assert found["token_ids"].tolist() == known.token_ids(part).tolist()
        assert found["offsets"].tolist() == known.offsets(part).tolist()
        assert (found["sequence_lengths"] > 0).all()
        assert found["dtype"] == ("int32" if ids == "many" else "uint16")


@pytest.mark.parametrize("with_eos", [True, False])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_the_files_are_those_that_megatron_core_writes(ids: Any, with_eos: bool, tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "megatron", ids=ids, with_eos=with_eos)
    peer = tmp_path / "peer"

    for part in PARTS:
        documents = known.documents(part)
        write_with("megatron", documents, peer, part=part, vocab_size=known.vocab_size)

    for written in peer.iterdir():
        assert (known.folder / written.name).read_bytes() == written.read_bytes(), written.name
    assert len(list(peer.iterdir())) == 4


def test_training_gets_every_token_in_the_order_of_its_documents(tmp_path: Path):
    known = known_dataset(tmp_path, "megatron")

    found = read_with("megatron", known.folder, "train", sequence_length=8, eod=known.eos_id)

    stream = shuffled(known, found["document_index"])
    num_rows = (len(stream) - 1) // 8
    assert found["tokens"].tolist() == stream[: num_rows * 8].reshape(-1, 8).tolist()
    assert found["labels"].tolist() == stream[1 : num_rows * 8 + 1].reshape(-1, 8).tolist()


def shuffled(known: Known, document_index: np.ndarray) -> np.ndarray:
    documents = known.documents("train")
    assert sorted(document_index.tolist()) == list(range(len(documents)))
    return np.concatenate([documents[number] for number in document_index])


def test_files_are_found_by_their_prefix_and_key(tmp_path: Path):
    known = known_dataset(tmp_path, "megatron", prefix="mine.v1", key="content", dtype="int32")

    found = read_with("megatron", known.folder, "train", prefix="mine.v1", key="content")

    assert found["token_ids"].tolist() == known.token_ids("train").tolist()
    assert found["dtype"] == "int32"

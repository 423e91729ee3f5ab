from pathlib import Path

import numpy as np
import pytest

from tokflow_tests.interop.harness import Known, known_dataset, read_with, write_with

pytestmark = pytest.mark.interop

PARTS = ["train", "validation"]
KINDS = {"bytes": ("bytes", True), "without EOS": ("bytes", False), "many": ("many", True)}


@pytest.fixture(scope="module", params=KINDS)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    ids, with_eos = KINDS[request.param]
    return known_dataset(tmp_path_factory.mktemp("known"), "megatron", ids=ids, with_eos=with_eos)


def test_megatron_core_reads_every_token_and_every_document(known: Known):
    for part in PARTS:
        found = read_with("megatron", known.folder, part)

        assert found["token_ids"].tolist() == known.token_ids(part).tolist()
        assert found["offsets"].tolist() == known.offsets(part).tolist()
        assert (found["sequence_lengths"] > 0).all()
        assert found["dtype"] == ("int32" if known.vocab_size > 65_536 else "uint16")


def test_the_files_are_those_that_megatron_core_writes(known: Known, tmp_path: Path):
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

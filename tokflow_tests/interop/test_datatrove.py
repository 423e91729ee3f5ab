from pathlib import Path

import numpy as np
import pytest

from tokflow_tests.chats import CHATS, chat_dataset, documents_of, shard_of
from tokflow_tests.interop.harness import MANY, Known, known_dataset, read_with, write_with
from tokflow_tests.making import build, many_ids

pytestmark = pytest.mark.interop

PARTS = ["train", "validation"]
KINDS = {"bytes": ("bytes", True), "without EOS": ("bytes", False), "many": ("many", True)}


@pytest.fixture(scope="module", params=KINDS)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    ids, with_eos = KINDS[request.param]
    options = {"ids": ids, "with_eos": with_eos, "tokenizer_name_or_path": "mine"}
    return known_dataset(tmp_path_factory.mktemp("known"), "datatrove", **options)


def token_size(known: Known) -> int:
    return 4 if known.vocab_size > 65_536 else 2


def test_datatrove_reads_every_token_and_every_document(known: Known):
    for part in PARTS:
        found = read_with("datatrove", known.folder, part, token_size=token_size(known))

        assert found["names"].tolist() == [f"00000_{part}.ds"]
        assert found["token_ids"].tolist() == known.token_ids(part).tolist()
        assert found["offsets"].tolist() == offsets_of_some(known, part)
        check_rows(found, [len(document) for document in known.documents(part)])


def test_datatrove_reads_files_of_a_given_size_in_order(tmp_path: Path):
    known = known_dataset(tmp_path, "datatrove", tokens_per_file=50)

    found = read_with("datatrove", known.folder, "train")

    assert found["names"].tolist() == [f"0000{number}_train.ds" for number in range(4)]
    assert found["token_ids"].tolist() == known.token_ids("train").tolist()
    assert found["offsets"].tolist() == known.offsets("train").tolist()


def offsets_of_some(known: Known, part: str) -> list[int]:
    """Return the offsets of the documents that have tokens."""
    return sorted(set(known.offsets(part).tolist()))


def check_rows(found: dict[str, np.ndarray], lengths: list[int]) -> None:
    """Compare the rows and positions that a training loop gets with the documents' own."""
    count = found["rows"].size
    assert found["rows"].reshape(-1).tolist() == found["token_ids"][:count].tolist()
    is_first = np.zeros(sum(lengths), dtype=bool)
    starts = np.cumsum([0, *(length for length in lengths if length)])[:-1]
    is_first[starts] = True
    for row, positions in enumerate(found["positions"].tolist()):
        expected = 0
        for column, position in enumerate(positions):
            is_start = column == 0 or is_first[row * len(positions) + column]
            expected = 0 if is_start else expected + 1
            assert position == expected, (row, column)


def test_the_files_are_those_that_datatrove_writes(known: Known, tmp_path: Path):
    peer = tmp_path / "peer"

    for part in PARTS:
        documents = [document for document in known.documents(part) if document]
        options = {"part": part, "token_size": token_size(known), "name": "mine"}
        write_with("datatrove", documents, peer, **options)

    for written in peer.iterdir():
        part = written.name.split(".")[0]
        ours = known.folder / part / f"00000_{written.name}"
        assert ours.read_bytes() == written.read_bytes(), written.name
    assert len(list(peer.iterdir())) == 6


def test_the_files_are_those_of_datatroves_own_tokenizer_step(tmp_path: Path):
    tokenizer = tmp_path / "many.json"
    tokenizer.write_text(many_ids())
    options = {"tokenizer_name_or_path": str(tokenizer)}
    known = known_dataset(tmp_path / "ours", "datatrove", ids="many", **options)
    texts = [text for name in sorted(MANY) if name.startswith("train") for text in MANY[name]]
    peer = tmp_path / "peer"

    given = {"texts": texts, "tokenizer": str(tokenizer), "eos_token": "<eos>"}
    write_with("datatrove", [], peer, **given)

    for suffix in ("", ".index", ".metadata"):
        ours = known.folder / "train" / f"00000_train.ds{suffix}"
        theirs = peer / f"train_00000_unshuffled.ds{suffix}"
        assert ours.read_bytes() == theirs.read_bytes(), suffix


def test_a_chats_loss_mask_is_where_datatrove_has_it(tmp_path: Path):
    dataset = chat_dataset(tmp_path, CHATS, exports=["datatrove"])
    folder = build(dataset).export("datatrove").output.folder
    documents = documents_of(shard_of(dataset))
    token_ids = [ids for ids, _ in documents]
    mask = np.array([bit for _, bits in documents for bit in bits], dtype=bool)

    found = read_with("datatrove", folder, "train", has_loss=True)
    write_with("datatrove", token_ids, tmp_path / "peer", arrays={"loss_mask": mask})

    assert found["token_ids"].tolist() == [token for ids in token_ids for token in ids]
    assert found["loss_mask"].tolist() == mask.tolist()
    assert 0 < mask.sum() < len(mask)
    for suffix in (".ds", ".ds.index", ".ds.loss"):
        ours = folder / "train" / f"00000_train{suffix}"
        assert ours.read_bytes() == (tmp_path / "peer" / f"train{suffix}").read_bytes(), suffix

import pickle
from pathlib import Path

import pytest

from tokflow_tests.interop.harness import known_dataset, read_with, write_with

pytestmark = pytest.mark.interop

TOKEN_BYTES = {"bytes": 2, "many": 4}

NOT_EMPTY = {
    "bytes": {"train-0.jsonl": ["a", "The quick brown fox", "größe"], "train-1.jsonl": ["x" * 99]},
    "many": {"train-0.jsonl": ["w65536 w0", "w69999 w7 w65535"], "train-1.jsonl": ["w3 w4"]},
}
"""modalities leaves out an empty text, and with it all that are packed at the same time."""


@pytest.mark.parametrize("with_eos", [True, False])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_modalities_reads_every_token_and_every_document(ids: str, with_eos: bool, tmp_path: Path):
    known = known_dataset(tmp_path, "modalities", ids=ids, with_eos=with_eos)

    for part in ("train", "validation"):
        found = read_with("modalities", known.folder, part, block_size=8)

        token_ids = known.token_ids(part)
        assert found["token_ids"].tolist() == token_ids.tolist()
        assert found["offsets"].tolist() == known.offsets(part).tolist()
        assert found["token_bytes"] == TOKEN_BYTES[ids]
        whole = token_ids[: len(token_ids) // 8 * 8]
        assert found["blocks"].tolist() == whole.reshape(-1, 8).tolist()


def test_modalities_reads_blocks_that_share_a_token(tmp_path: Path):
    known = known_dataset(tmp_path, "modalities")
    token_ids = known.token_ids("train").tolist()

    found = read_with("modalities", known.folder, "train", block_size=8, reuse_last_target=True)

    firsts = range(0, len(token_ids) - 7, 7)
    assert found["blocks"].tolist() == [token_ids[first : first + 8] for first in firsts]


def test_modalities_reads_each_file_of_a_part(tmp_path: Path):
    known = known_dataset(tmp_path, "modalities", tokens_per_file=50)
    names = sorted(path.stem for path in known.folder.glob("train-*.pbin"))

    found = [read_with("modalities", known.folder, name, block_size=2) for name in names]

    assert names == [f"train-{number:05d}" for number in range(4)]
    tokens = [token for file in found for token in file["token_ids"].tolist()]
    assert tokens == known.token_ids("train").tolist()


@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_header_and_data_are_those_that_modalities_packs_and_its_index_says_the_same(
    ids: str, tmp_path: Path
):
    known = known_dataset(tmp_path / "ours", "modalities", ids=ids, files=NOT_EMPTY[ids])
    texts = [document[:-1] for document in known.documents("train")]  # it puts EOS itself
    given = {"vocab_size": known.vocab_size, "eos_id": known.eos_id}

    write_with("modalities", texts, tmp_path / "peer", **given)

    theirs = (tmp_path / "peer" / "train.pbin").read_bytes()
    ours = (known.folder / "train.pbin").read_bytes()
    index = 12 + int.from_bytes(ours[:8], "little")
    assert ours[:index] == theirs[:index]
    assert pickle.loads(ours[index:]) == pickle.loads(theirs[index:])

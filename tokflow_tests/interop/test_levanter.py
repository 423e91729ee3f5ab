from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.chats import CHATS, chat_dataset, documents_of, shard_of
from tokflow_tests.interop.harness import known_dataset, read_with, write_with
from tokflow_tests.making import build, content

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(("ids", "with_eos"), [("bytes", False), ("many", True)])
def test_levanter_reads_every_document_and_trains_on_every_full_row(
    ids: Any, with_eos: bool, tmp_path: Path
):
    known = known_dataset(tmp_path, "levanter", ids=ids, with_eos=with_eos)

    for part in ("train", "validation"):
        found = read_with("levanter", known.folder, part, sequence_length=8)

        expected = known.token_ids(part)
        for name in ("token_ids", "single"):  # in batches, and document by document
            assert found[name].tolist() == expected.tolist()
        assert found["offsets"].tolist() == known.offsets(part).tolist()
        assert found["num_tokens"] == len(expected)
        num_rows = len(expected) // 8
        assert found["sequences"].tolist() == expected[: num_rows * 8].reshape(-1, 8).tolist()


@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_the_files_are_those_that_levanter_writes(ids: Any, tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "levanter", ids=ids, with_eos=False)
    peer = tmp_path / "peer"

    write_with("levanter", known.documents("train"), peer)

    assert content(known.folder / "train") == content(peer / "train")
    assert len(content(peer / "train")) == 5


def test_levanter_trains_on_what_the_assistant_says(tmp_path: Path):
    dataset = chat_dataset(tmp_path, CHATS, exports=["levanter"])
    folder = build(dataset).export("levanter").output.folder
    token_ids, masks = zip(*documents_of(shard_of(dataset)), strict=True)
    length = max(map(len, token_ids))

    found = read_with("levanter", folder, "train", form="chat", sequence_length=length)
    write_with(
        "levanter",
        token_ids,
        tmp_path / "peer",
        arrays={"loss_mask": np.concatenate(masks)},
        form="chat",
    )

    assert found["token_ids"].tolist() == [token for ids in token_ids for token in ids]
    assert found["loss_mask"].tolist() == [value for mask in masks for value in mask]
    assert content(folder / "train") == content(tmp_path / "peer" / "train")
    learnt = np.roll(found["sequences"], -1, axis=1)[found["loss_masks"].astype(bool)]
    assert learnt.tolist() == [
        token
        for ids, mask in zip(token_ids, masks, strict=True)
        for token, is_learnt in zip(ids, mask, strict=True)
        if is_learnt
    ]

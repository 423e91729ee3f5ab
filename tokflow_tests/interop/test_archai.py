import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.interop.harness import known_dataset, read_with, write_with

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(("ids", "with_eos"), [("bytes", True), ("bytes", False), ("many", True)])
def test_archai_reads_every_token_and_makes_inputs_and_labels_of_them(
    ids: Any, with_eos: bool, tmp_path: Path
):
    known = known_dataset(tmp_path, "archai", ids=ids, with_eos=with_eos)

    for part in ("train", "validation"):
        found = read_with("archai", known.folder, part, sequence_length=8)

        expected = known.token_ids(part)
        num_rows = (len(expected) - 1) // 8
        assert found["token_ids"].tolist() == expected.tolist()
        assert found["token_ids"].dtype == (np.int32 if ids == "many" else np.uint16)
        assert found["inputs"].ravel().tolist() == expected[: num_rows * 8].tolist()
        assert found["labels"].ravel().tolist() == expected[1 : num_rows * 8 + 1].tolist()
        assert not found["has_tokenizer"]


@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_the_files_are_those_that_archai_writes(ids: Any, tmp_path: Path):
    texts = ["ab", "c", "one document"] if ids == "bytes" else ["w65536 w3", "w69999 w65535 w1"]
    parts = ("train", "validation", "test")
    texts_of = str(tmp_path / "peer" / "texts")
    known = known_dataset(
        tmp_path / "ours",
        "archai",
        ids=ids,
        files={f"{part}.jsonl": texts for part in parts},
        attributes={"split": {"parts": {part: {"files": f"{part}.jsonl"} for part in parts}}},
        dataset_file_path=texts_of,
        tokenizer_name="",  # the peer's tokenizer was made in memory
    )

    documents = known.documents("train")
    write_with("archai", documents, tmp_path / "peer", vocab_size=known.vocab_size)

    cache = tmp_path / "peer" / "cache"
    names = ["config.json", "test.npy", "train.npy", "validation.npy"]
    assert sorted(path.name for path in cache.iterdir()) == sorted([*names, "tokenizer.pkl"])
    for name in names:
        assert (known.folder / name).read_bytes() == (cache / name).read_bytes(), name
    assert json.loads((known.folder / "config.json").read_text())["dataset_file_path"] == texts_of

import struct
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.exports import FORMATS
from tokflow.exports.formats.megatron import MegatronOptions
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.run import build_dataset
from tokflow.store.manifest import Manifest
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.exports.exporting import MANY_IDS, read
from tokflow_tests.outputs import documents_of, parts
from tokflow_tests.tiny import EOS, build, declare, many_ids, tokenize

WITHOUT_EOS = {"tokenizer": {"kind": "bytes", "eos": "none"}}


def export(
    folder: Path, files: dict[str, list[str]], *, attributes: Any = None, **options: Any
) -> tuple[Dataset, Path, Manifest]:
    exports = [{"format": "megatron", **options}]
    dataset = declare(folder, files, exports=exports, **(attributes or {}))
    made = build(dataset).export("megatron")
    return dataset, made.output.folder, made.manifest


def index_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    magic, version, code, num_sequences, num_firsts = struct.unpack_from("<9sQBQQ", data)
    assert len(data) == 34 + 12 * num_sequences + 8 * num_firsts
    return {
        "head": (magic, version, code),
        "lengths": list(struct.unpack_from(f"<{num_sequences}i", data, 34)),
        "pointers": list(struct.unpack_from(f"<{num_sequences}q", data, 34 + 4 * num_sequences)),
        "firsts": list(struct.unpack_from(f"<{num_firsts}q", data, 34 + 12 * num_sequences)),
    }


def test_each_document_is_a_sequence_but_those_without_tokens(tmp_path: Path):
    files = {"a.jsonl": ["", "ab", "", "", "c"], "b.jsonl": ["def", ""]}
    _, folder, manifest = export(tmp_path, files, attributes=WITHOUT_EOS)

    index = index_of(folder / "train_text_document.idx")

    assert index == {
        "head": (b"MMIDIDX\0\0", 1, 8),
        "lengths": [2, 1, 3],
        "pointers": [0, 4, 6],
        "firsts": [0, 0, 1, 1, 1, 2, 3, 3],
    }
    tokens = (folder / "train_text_document.bin").read_bytes()
    assert struct.unpack("<6H", tokens) == tuple(b"abcdef")
    assert manifest.counts["train.num_documents"] == 7


@pytest.mark.parametrize(
    ("vocab_size", "dtype", "code"),
    [
        (65_499, "auto", 8),
        (65_500, "auto", 4),
        (65_536, "auto", 4),
        (65_536, "uint16", 8),
        (258, "int32", 4),
    ],
)
def test_the_dtype_is_the_one_that_megatrons_tool_would_take(
    tmp_path: Path, vocab_size: int, dtype: Any, code: int
):
    dataset, _, manifest = export(tmp_path, {"a.jsonl": ["ab", "c"]})
    part = replace(parts(dataset, "megatron")["train"], vocab_size=vocab_size)
    out = tmp_path / "out"
    out.mkdir()

    [*FORMATS["megatron"].write(part, MegatronOptions(dtype=dtype), out)]

    index = index_of(out / "train_text_document.idx")
    itemsize = {8: 2, 4: 4}[code]
    assert index["head"][2] == code
    assert index["pointers"] == [0, 3 * itemsize]
    assert (out / "train_text_document.bin").stat().st_size == 5 * itemsize
    [own] = read(out, manifest)
    assert own["token_ids"].tolist() == [*b"ab", EOS, *b"c", EOS]
    assert own["token_ids"].dtype == np.uint16


def test_uint16_for_more_ids_is_refused(tmp_path: Path):
    (tmp_path / "many.json").write_text(many_ids())
    exports = [{"format": "megatron", "dtype": "uint16"}]
    dataset = declare(tmp_path, {"a.jsonl": ["w1"]}, exports=exports, tokenizer=MANY_IDS)

    [failed] = build_dataset(dataset).failed

    assert (failed.error.where, failed.error.found) == (
        "exports: megatron: dtype",
        "uint16 for 70,001 ids",
    )


def test_a_document_longer_than_an_int32_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.formats.megatron.MAX_DOCUMENT_TOKENS", 3)
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "cde"]}, exports=["megatron"])

    [failed] = build_dataset(dataset).failed

    assert (failed.error.where, failed.error.found) == ("exports: megatron", "4")


def test_the_loss_mask_of_chats_stands_beside_their_tokens(tmp_path: Path):
    exports = [{"format": "megatron", "loss_mask": True}]
    dataset = chat_dataset(tmp_path, CHATS, exports=exports)

    folder = build(dataset).export("megatron").output.folder

    tokens = index_of(folder / "train_text_document.idx")
    masks = index_of(folder / "train_text_loss_mask.idx")
    loss = [mask for _, mask in documents_of(tokenize(dataset))]
    assert masks["head"] == (b"MMIDIDX\0\0", 1, 1)
    assert masks["lengths"] == tokens["lengths"] == [*map(len, loss)]
    assert masks["firsts"] == tokens["firsts"]
    assert masks["pointers"] == [pointer // 2 for pointer in tokens["pointers"]]
    assert (folder / "train_text_loss_mask.bin").read_bytes() == bytes(chain.from_iterable(loss))

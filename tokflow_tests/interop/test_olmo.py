import csv
import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.chats import CHATS, chat_dataset, documents_of, shard_of
from tokflow_tests.interop.harness import (
    BYTES,
    MANY,
    Arrays,
    Known,
    known_dataset,
    read_with,
    write_with,
)
from tokflow_tests.making import EOS, build

pytestmark = pytest.mark.interop

LONGER_THAN_ALL = 128
DTYPE = {"bytes": "uint16", "many": "uint32"}


def read(known: Known, part: str, ids: str, length: int, **options: Any) -> Arrays:
    eos_id = EOS if known.eos_id is None else known.eos_id  # it cannot do without
    given = {"vocab_size": known.vocab_size, "eos_id": eos_id, "dtype": DTYPE[ids]}
    return read_with("olmo", known.folder, part, sequence_length=length, **given, **options)


def documents_in(found: Arrays) -> list[list[int]]:
    pairs = itertools.pairwise(found["offsets"].tolist())
    return sorted(found["token_ids"][start:stop].tolist() for start, stop in pairs)


def some(documents: list[list[int]]) -> list[list[int]]:
    """Return the documents that have tokens, in the order of their tokens."""
    return sorted(filter(None, documents))


@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_olmo_reads_every_sequence_of_the_stream(ids: str, tmp_path: Path):
    known = known_dataset(tmp_path, "olmo", ids=ids)
    token_ids = known.token_ids("train")

    found = read(known, "train", ids, 8)

    assert found["rows"].tolist() == token_ids[: len(token_ids) // 8 * 8].reshape(-1, 8).tolist()
    assert sorted(found["token_ids"].tolist()) == sorted(token_ids.tolist())


@pytest.mark.parametrize("from_lines", [False, True])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_olmo_packs_every_document_whole(ids: str, from_lines: bool, tmp_path: Path):
    known = known_dataset(tmp_path, "olmo", ids=ids)

    for part in ("train", "validation"):
        found = read(known, part, ids, LONGER_THAN_ALL, from_lines=from_lines)

        assert documents_in(found) == some(known.documents(part))


def test_the_lines_tell_documents_apart_that_have_no_eos(tmp_path: Path):
    known = known_dataset(tmp_path, "olmo", with_eos=False, tokens_per_file=50)

    found = read(known, "train", "bytes", LONGER_THAN_ALL, from_lines=True)

    assert len(list((known.folder / "train").glob("*.npy"))) == 4
    assert documents_in(found) == some(known.documents("train"))


def test_of_several_files_olmo_leaves_out_what_fills_no_sequence_of_each(tmp_path: Path):
    known = known_dataset(tmp_path, "olmo", tokens_per_file=50)
    sizes = [
        len(np.memmap(path, dtype=np.uint16))
        for path in sorted((known.folder / "train").glob("part-*.npy"))
    ]
    files = np.split(known.token_ids("train"), np.cumsum(sizes)[:-1])

    found = read(known, "train", "bytes", 8)

    rows = [file[: len(file) // 8 * 8].reshape(-1, 8) for file in files]
    assert len(files) == 4
    assert found["rows"].tolist() == np.concatenate(rows).tolist()


def test_olmo_reads_the_loss_mask_of_chats(tmp_path: Path):
    dataset = chat_dataset(tmp_path, CHATS, exports=["olmo"])
    made = build(dataset).export("olmo")
    documents = documents_of(shard_of(dataset))
    details = made.manifest.details
    given = {"vocab_size": details["vocab_size"], "eos_id": details["eos_id"]}

    found = read_with(
        "olmo", made.output.folder, "train", sequence_length=16, dtype="uint16", **given
    )
    whole = read_with(
        "olmo",
        made.output.folder,
        "train",
        sequence_length=512,
        dtype="uint16",
        from_lines=True,
        **given,
    )

    mask = np.array([bit for _, bits in documents for bit in bits], dtype=bool)
    assert found["label_mask"].reshape(-1).tolist() == mask[: found["rows"].size].tolist()
    pairs = itertools.pairwise(whole["offsets"].tolist())
    learnt = [
        (whole["token_ids"][start:stop].tolist(), whole["learnt"][start:stop].tolist())
        for start, stop in pairs
    ]
    assert sorted(learnt) == sorted((ids, [bit > 0 for bit in bits]) for ids, bits in documents)
    assert 0 < mask.sum() < len(mask)


@pytest.mark.parametrize("with_eos", [True, False])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_tokens_and_lines_are_those_that_dolma_writes(ids: str, with_eos: bool, tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "olmo", ids=ids, with_eos=with_eos)
    texts = {"bytes": BYTES, "many": MANY}[ids]
    origins = [
        (name, row)
        for name in sorted(texts)
        if name.startswith("train")
        for row in range(len(texts[name]))
    ]
    given = {"raw_files": [name for name, _ in origins], "rows": [row for _, row in origins]}
    peer = tmp_path / "peer"

    write_with("dolma", known.documents("train"), peer, dtype=DTYPE[ids], **given)

    ours = known.folder / "train"
    name = "part-0-00000"
    assert (ours / f"{name}.npy").read_bytes() == (peer / f"{name}.npy").read_bytes()
    assert lines_of(ours / f"{name}.csv.gz") == lines_of(peer / f"{name}.csv.gz")


def lines_of(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.reader(file))

from pathlib import Path
from typing import Any

import pytest

from tokflow_tests.interop.harness import known_dataset, read_with, write_with

pytestmark = pytest.mark.interop

PARTS = ["train", "validation"]


@pytest.mark.parametrize("with_eos", [True, False])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_lance_takes_the_tokens_of_each_block_and_scans_them_all(
    ids: Any, with_eos: bool, tmp_path: Path
):
    known = known_dataset(tmp_path, "lance", ids=ids, with_eos=with_eos, max_rows_per_file=30)

    for part in PARTS:
        found = read_with("lance", known.folder, part, block_size=8)

        expected = known.token_ids(part).tolist()
        assert found["token_ids"].tolist() == expected
        assert found["scanned"].tolist() == expected
        assert found["types"].tolist() == ["input_ids: int64"]
        assert set(found["rows_per_file"][:-1]) <= {30}
        assert found["num_versions"] == 1


def test_lance_finds_every_document(tmp_path: Path):
    known = known_dataset(tmp_path, "lance", with_eos=False)

    for part in PARTS:
        found = read_with("lance", known.folder, part, layout="documents")

        documents = zip(found["token_offset"], found["num_tokens"], strict=True)
        stream = found["token_ids"]
        taken = [stream[start : start + length].tolist() for start, length in documents]
        assert taken == known.documents(part)


@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_lance_takes_sequences_with_every_column(ids: Any, tmp_path: Path):
    options = {"layout": "sequences", "max_rows_per_file": 4}
    known = known_dataset(tmp_path, "lance", ids=ids, **options)

    for part in PARTS:
        found = read_with("lance", known.folder, part, layout="sequences")

        for name, expected in known.rows(part).items():
            assert found[name].tolist() == expected.tolist(), name
        assert found["types"].tolist() == [
            "input_ids: fixed_size_list<item: int32>[8]",
            "segment_ids: fixed_size_list<item: int32>[8]",
            "position_ids: fixed_size_list<item: int32>[8]",
        ]


def test_what_lance_writes_as_its_example_does_has_the_same_rows_and_columns(tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "lance", max_rows_per_file=1_048_576)
    peer = tmp_path / "peer"

    write_with("lance", known.documents("train"), peer)

    theirs = read_with("lance", peer, "train")
    ours = read_with("lance", known.folder, "train")
    assert set(theirs) == set(ours)
    for name, values in theirs.items():
        assert ours[name].tolist() == values.tolist(), name

"""Dumps are read by what trains on them: a dataset class written here from its description."""

import json
import pickle
from pathlib import Path

import pytest

from tokflow_tests.interop.harness import known_dataset

pytestmark = pytest.mark.interop

PARTS = ("train", "validation")


class PickledDataset:
    """Rows by number from a folder of dumps: the one .json in it says how many are in each."""

    def __init__(self, folder: Path) -> None:
        [described] = folder.glob("*.json")
        self.dumps = json.loads(described.read_text())
        assert {path.name for path in folder.glob("*.pkl")} == {*self.dumps}
        self.folder = folder
        self.loaded: tuple[str, list[list[int]]] | None = None

    def __len__(self) -> int:
        return sum(dump["num_samples"] for dump in self.dumps.values())

    def __getitem__(self, number: int) -> list[int]:
        for name, dump in self.dumps.items():
            if number < dump["num_samples"]:
                if self.loaded is None or self.loaded[0] != name:
                    self.loaded = name, pickle.loads((self.folder / name).read_bytes())
                return self.loaded[1][number]
            number -= dump["num_samples"]
        raise IndexError


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("per_file", [1, 4, 10_000])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_a_trainer_reads_every_row(ids: str, per_file: int, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "pickle", ids=ids, sequences_per_file=per_file)

    dataset = PickledDataset(known.folder / part)

    expected = known.rows(part)["token_ids"].tolist()
    assert [dataset[number] for number in range(len(dataset))] == expected
    assert sum(dump["num_tokens"] for dump in dataset.dumps.values()) == 8 * len(expected)


def test_short_rows_are_left_out(tmp_path: Path):
    packing = {"sequence_length": 8, "min_sample_length": 8}
    known = known_dataset(tmp_path, "pickle", attributes={"packing": packing})

    dataset = PickledDataset(known.folder / "validation")

    rows = known.rows("validation")
    is_full = (rows["segment_ids"] != 0).all(axis=1)
    assert not is_full.all()
    assert [dataset[number] for number in range(len(dataset))] == (
        rows["token_ids"][is_full].tolist()
    )


def test_padding_is_the_id_asked_for(tmp_path: Path):
    known = known_dataset(tmp_path, "pickle", pad_id=-100)

    dataset = PickledDataset(known.folder / "validation")

    rows = known.rows("validation")
    expected = rows["token_ids"].copy()
    expected[rows["segment_ids"] == 0] = -100
    assert (expected == -100).any()
    assert [dataset[number] for number in range(len(dataset))] == expected.tolist()

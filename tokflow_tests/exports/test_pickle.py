import json
import pickle
from pathlib import Path

import pytest

from tokflow_tests.exports.exporting import export
from tokflow_tests.tiny import EOS, declare


def samples_of(folder: Path) -> list[list[int]]:
    return pickle.loads((folder / "train/dump-0.pkl").read_bytes())


def test_pickle_is_lists_of_lists_of_python_numbers(tmp_path: Path):
    folder, _ = export(declare(tmp_path, {"a.jsonl": ["abcde"]}, exports=["pickle"]))

    samples = samples_of(folder)

    assert samples == [[*b"abcd"], [*b"e", EOS, EOS, EOS]]
    assert {type(token) for row in samples for token in row} == {int}
    assert sorted(path.name for path in (folder / "train").iterdir()) == [
        "dump-0.pkl",
        "dump-meta_data.json",
    ]


def test_pickle_says_how_much_is_in_each_dump_and_nothing_else(tmp_path: Path):
    exports = [{"format": "pickle", "shard_size": 2 * 15}]
    folder, _ = export(declare(tmp_path, {"a.jsonl": ["abcdefghijkl"]}, exports=exports))

    text = (folder / "train" / "dump-meta_data.json").read_text()

    assert json.loads(text) == {
        "dump-0.pkl": {"num_samples": 2, "num_tokens": 8},
        "dump-1.pkl": {"num_samples": 2, "num_tokens": 8},
    }


@pytest.mark.parametrize("pad_id", [32_014, -100])
def test_pickle_pads_with_its_own_id_where_it_has_one(pad_id: int, tmp_path: Path):
    exports = [{"format": "pickle", "pad_id": pad_id}]
    folder, _ = export(declare(tmp_path, {"a.jsonl": ["ab"]}, exports=exports))

    assert samples_of(folder) == [[*b"ab", EOS, pad_id]]

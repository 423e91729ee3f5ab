import json
import pickle
from pathlib import Path

import pytest

from tokflow_tests.exports.exporting import export
from tokflow_tests.tiny import EOS, declare, ids, write_texts


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


def load_dumps(folder: Path) -> list[list[int]]:
    """Return the samples of a folder as PickledTrainerDataset does: its one JSON names the dumps,
    which are all there is besides."""
    [metadata] = folder.glob("*.json")
    dumps = json.loads(metadata.read_text())
    assert {path.name for path in folder.glob("*.pkl")} == {*dumps}
    samples = []
    for name, of in dumps.items():
        loaded = pickle.loads((folder / name).read_bytes())
        assert of == {"num_samples": len(loaded), "num_tokens": sum(map(len, loaded))}
        samples += loaded
    return samples


def test_one_yaml_makes_the_dumps_of_training_and_of_validation(tmp_path: Path):
    texts = [f"int f{n}(void) {{ return {n}; }}\n" * (n % 7) for n in range(200)]
    write_texts(tmp_path / "raw/a.parquet", texts)
    dataset = declare(
        tmp_path,
        raw={"files": "raw/*.parquet"},
        split={
            "boundary": "character",
            "parts": {
                "train": {"start": 0, "characters": 9_500},
                "validation": {"start": 9_500, "characters": 1_300},
            },
        },
        packing={
            "pad_id": 32_014,
            "parts": {
                "train": {"sequence_length": 1_536, "min_sample_length": 1_000},
                "validation": {"sequence_length": 512},
            },
        },
        exports=[{"format": "pickle", "shards": 2}],
    )

    folder, manifest = export(dataset)

    train, validation = (load_dumps(folder / part) for part in ("train", "validation"))
    assert [len(row) for row in train] == [1_536] * 6
    assert [token for row in train for token in row] == ids(*texts)[: 6 * 1_536]
    assert manifest.counts["train.num_dropped_tokens"] < 1_000
    assert [len(row) for row in validation] == [512, 512, 512]
    assert validation[-1][-1] == 32_014
    assert manifest.counts["validation.num_dropped_tokens"] == 0

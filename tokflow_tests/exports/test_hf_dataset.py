import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tokflow_tests.exports.exporting import export_as
from tokflow_tests.outputs import content
from tokflow_tests.tiny import EOS

TWO_PARTS = {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}


def exported(folder: Path, texts: list[str], *, split: Any = None, **options: Any) -> Path:
    attributes = {"split": split} if split else {}
    return export_as("hf_dataset", folder, texts, attributes=attributes, **options)[0]


def table_of(folder: Path) -> pa.Table:
    state = json.loads((folder / "state.json").read_text())
    shards = [folder / each["filename"] for each in state["_data_files"]]
    return pa.concat_tables([pa.ipc.open_stream(shard.read_bytes()).read_all() for shard in shards])


def test_a_folder_has_a_dictionary_and_a_dataset_for_each_part(tmp_path: Path):
    folder = exported(tmp_path, ["ab", "c"], split=TWO_PARTS)

    assert json.loads((folder / "dataset_dict.json").read_text()) == {
        "splits": ["train", "validation"]
    }
    assert sorted(
        set(content(folder))
        - {"_tokflow/index.parquet", "_tokflow/manifest.json", "_tokflow/run.json"}
    ) == [
        "dataset_dict.json",
        *(
            f"{part}/{name}"
            for part in ("train", "validation")
            for name in ("data-00000-of-00001.arrow", "dataset_info.json", "state.json")
        ),
    ]
    assert table_of(folder / "train").to_pydict() == {
        "input_ids": [[*b"ab", EOS, EOS]],
        "attention_mask": [[1, 1, 1, 0]],
        "segment_ids": [[1, 1, 1, 0]],
        "position_ids": [[0, 1, 2, 0]],
    }


@pytest.mark.parametrize(("part", "split"), [("train_b", "train_b"), ("train-b", None)])
def test_a_name_that_datasets_takes_for_no_split_is_none(
    part: str, split: str | None, tmp_path: Path
):
    folder = exported(tmp_path, ["ab"], split={"parts": {part: {"start": 0}}})

    assert json.loads((folder / part / "state.json").read_text())["_split"] == split


@pytest.mark.parametrize("kind", ["List", "Sequence"])
def test_lists_are_called_as_readers_of_old_or_new_call_them(kind: str, tmp_path: Path):
    folder = exported(tmp_path, ["ab"], columns=["labels"], feature_type=kind)

    features = json.loads((folder / "train/dataset_info.json").read_text())["features"]
    of_schema = json.loads(table_of(folder / "train").schema.metadata[b"huggingface"])

    feature = {"feature": {"dtype": "int32", "_type": "Value"}, "_type": kind}
    assert features == {"input_ids": feature, "labels": feature}
    assert of_schema == {"info": {"features": features}}


def test_the_fingerprint_changes_with_the_content_and_with_nothing_else(tmp_path: Path):
    def fingerprint(name: str, texts: list[str], **options: Any) -> str:
        folder = exported(tmp_path / name, texts, **options)
        return json.loads((folder / "train/state.json").read_text())["_fingerprint"]

    first = fingerprint("first", ["abc", "defgh"])

    assert len(first) == 16
    assert fingerprint("again", ["abc", "defgh"]) == first
    assert fingerprint("text", ["abc", "defgi"]) != first
    assert fingerprint("columns", ["abc", "defgh"], columns=["segment_ids"]) != first

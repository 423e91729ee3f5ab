"""`load_dataset` reads the parts of an export that was pushed, whole and streamed."""

import json
from pathlib import Path

import pytest

from tokflow.push.upload import push_export
from tokflow_tests.hub import Hub
from tokflow_tests.interop.harness import known_dataset, printed_by

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning"),
]

LOAD = """
import json, sys, datasets
found = datasets.load_dataset("team/texts", *sys.argv[1:])
streamed = datasets.load_dataset("team/texts", *sys.argv[1:], streaming=True)
[column] = {"input_ids", "json.gz", "raw_file"} & {*next(iter(found.values())).column_names}
rows = {split: [row[column] for row in found[split]] for split in found}
assert rows == {split: [row[column] for row in streamed[split]] for split in found}
print(json.dumps(rows))
"""

OPTIONS = {
    "parquet": {"shards": 6},
    "jsonl": {"compression": "zst", "padding": True},
    "arrow": {},
    "hf_dataset": {},
    "webdataset": {},
}


@pytest.fixture
def writable(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub.token = "hf_secretsecret"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    return hub


def load(home: Path, *config: str) -> dict[str, list[object]]:
    return json.loads(printed_by("datasets", LOAD, *config, home=home))


@pytest.mark.parametrize("format_", OPTIONS)
def test_the_rows_of_each_part_are_those_of_the_export(format_: str, writable: Hub, tmp_path: Path):
    known = known_dataset(tmp_path / "made", format_, **OPTIONS[format_])

    push_export(known.folder, "hf://datasets/team/texts")

    found = load(tmp_path / "home")
    assert found.keys() == {"train", "validation"}
    for part, rows in found.items():
        assert rows == known.rows(part)["token_ids"].tolist()


def test_exports_of_one_repository_are_configs_and_parts_that_begin_alike_are_two_splits(
    writable: Hub, tmp_path: Path
):
    parts = {"train": {"files": "train-*"}, "train-b": {"files": "validation-*"}}
    packed = known_dataset(tmp_path / "packed", "parquet", attributes={"split": {"parts": parts}})
    stream = known_dataset(tmp_path / "stream", "bin")
    push_export(stream.folder, "hf://datasets/team/texts/stream")
    push_export(packed.folder, "hf://datasets/team/texts/packed")

    found = load(tmp_path / "home", "packed")
    index = load(tmp_path / "home", "stream")

    assert found == {
        "train": packed.rows("train")["token_ids"].tolist(),
        "train_b": packed.rows("validation")["token_ids"].tolist(),
    }
    assert index.keys() == {"index"}

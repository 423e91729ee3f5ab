"""The splits of a dataset are those that `load_dataset` and `load_from_disk` find."""

import json
from pathlib import Path

import pytest

from tokflow.documents import DocumentsConfig
from tokflow.raw import RawConfig, list_raw, read_raw_files
from tokflow_tests.hub import Hub
from tokflow_tests.interop.harness import printed_by
from tokflow_tests.reading import read_documents

pytestmark = pytest.mark.interop

LOAD = """
import json, sys, datasets
found = datasets.load_dataset("team/texts", sys.argv[1] or None)
print(json.dumps({split: sorted(found[split]["text"]) for split in found}))
"""

SAVE = """
import sys, datasets
whole = datasets.Dataset.from_dict({"text": [f"text {number}" for number in range(9)]})
parts = datasets.DatasetDict({"train": whole.select([7, 2, 5, 1]), "test": whole.select([8])})
parts.save_to_disk(sys.argv[1], num_shards={"train": 2, "test": 1})
"""

CARD = """---
configs:
- config_name: one
  data_files: [{split: train, path: one/train-*}]
- config_name: two
  default: true
  data_files: [{split: train, path: two/*.jsonl}, {split: test, path: [two/more/*, t.jsonl]}]
- config_name: folder
  data_dir: one
---
"""

LAYOUTS: dict[str, tuple[str, list[str]]] = {
    "shards": ("", ["data/train-00000-of-00001.jsonl", "data/x-00000-of-00001.jsonl", "y.jsonl"]),
    "folders": ("", ["en/train/a.jsonl", "de/train_2/b.jsonl", "en/dev/c.jsonl", "x.jsonl"]),
    "names": ("", ["my-train.jsonl", "val.jsonl", "eval_1.jsonl", "trainer.jsonl"]),
    "plain": ("", ["a.jsonl", "sub/b.jsonl", "__x__/c.jsonl", ".h/d.jsonl"]),
    "formats": ("", ["train.jsonl", "test.jsonl", "train.txt"]),
    "default": (CARD, ["one/train-0.jsonl", "two/a.jsonl", "two/more/b.jsonl", "t.jsonl"]),
    "one": (CARD, ["one/train-0.jsonl", "two/a.jsonl", "one/other.jsonl"]),
    "folder": (CARD, ["one/train-0.jsonl", "one/b/test.jsonl", "test.jsonl"]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_documents_of_each_split_are_those_of_load_dataset(name: str, hub: Hub, tmp_path: Path):
    card, paths = LAYOUTS[name]
    config = name if f"config_name: {name}\n" in card else None
    files = {path: f"{json.dumps({'text': path})}\n".encode() for path in paths}
    hub.push("team/texts", {**files, "README.md": card.encode()})

    raw = RawConfig(files="hf://datasets/team/texts", config=config)
    sources = list_raw(raw, base=tmp_path).sources
    raw_files = read_raw_files(sources.values(), store=tmp_path / "store")

    found: dict[str, list[str]] = {}
    for key, source in sources.items():
        for batch in read_documents(raw_files[key].path, DocumentsConfig()):
            found.setdefault(source.source_split, []).extend(batch.texts.to_pylist())
    loaded = printed_by("datasets", LOAD, config or "", home=tmp_path / "home")
    assert found == json.loads(loaded)


def test_a_folder_of_save_to_disk_has_its_documents_in_their_order(tmp_path: Path):
    printed_by("datasets", SAVE, tmp_path / "saved", home=tmp_path / "home")
    sources = list_raw(RawConfig(files="saved"), base=tmp_path).sources

    found: dict[str, list[str]] = {}
    for source in sources.values():
        for batch in read_documents(Path(source.url), DocumentsConfig()):
            found.setdefault(source.source_split, []).extend(batch.texts.to_pylist())
    assert found == {"test": ["text 8"], "train": [f"text {number}" for number in (7, 2, 5, 1)]}

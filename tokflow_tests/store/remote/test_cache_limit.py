"""The limit of the cache: what was used longest ago goes, and comes again."""

import os
from pathlib import Path

import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow.store.manifest import is_complete
from tokflow.store.remote.cache import make_room
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import fetched
from tokflow_tests.tiny import build, declare_small


@pytest.fixture
def built(tmp_path: Path, object_store: ObjectStore) -> Dataset:
    """A dataset at a URL that this machine has made, all of its outputs used a day ago."""
    dataset = declare_small(tmp_path, store=f"{object_store.url}/store")
    build(dataset)
    [tokenizer] = dataset.folder.glob("tokenizer/*")
    (tokenizer / "tokenizer.json").write_text("{}")
    for path in dataset.folder.rglob("*"):
        os.utime(path, (path.stat().st_mtime - 86_400,) * 2, follow_symlinks=False)
    return dataset


def _files(dataset: Dataset) -> set[Path]:
    return {path for path in dataset.folder.rglob("*.*") if path.is_file()}


def test_files_of_any_stage_go_that_were_used_longest_ago_and_come_when_they_are_opened(
    built: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [
        path.parents[1] / "tokens.bin"
        for path in built.folder.glob("tokens/**/_tokflow/manifest.json")
    ]
    opened, *others = sorted(tokens)
    (built.folder / "split").rename(built.folder / "a_new_stage")
    [export] = built.folder.glob("exports/bin/[0-9a-f]*")
    on_its_way = export.rename(export.with_name(f".{export.name}.0123abcd.7.0123abcd.tmp"))
    before = _files(built)
    with opened.open("rb") as file:
        monkeypatch.setenv("TOKFLOW_CACHE_BYTES", "1")
        make_room(tmp_path / "cache")
        assert file.read()  # of one that has gone
    gone = before - _files(built)
    assert {*tokens} <= gone
    assert len([path for path in gone if path.name == "spans.parquet"]) == 3
    assert (on_its_way / "train.bin").is_file()
    assert all(is_complete(path.parent) for path in tokens)
    assert not [path for path in gone if path.name == "manifest.json" or "tokenizer" in path.parts]
    assert fetched(opened).is_file()
    make_room(tmp_path / "cache")
    assert opened.is_file()  # used just now
    assert not any(path.exists() for path in others)

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.utils import disable_progress_bars

from tokflow_tests.hub import Hub
from tokflow_tests.tiny import TEXTS, build, declare

TOKEN = "hf_secretsecret"


@pytest.fixture
def writable(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, where HF_TOKEN may write; large files are sent as git's LFS has it."""
    hub.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    quick = SimpleNamespace(sleep=lambda seconds: None, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr("huggingface_hub.utils._http.time", quick)
    disable_progress_bars()
    return hub


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a small dataset's exports, by name."""
    dataset = declare(
        tmp_path_factory.mktemp("pushed"),
        TEXTS,
        raw={"files": "raw/**/*.jsonl"},
        packing={"sequence_length": 8},
        split={"parts": {"train": {"files": "[ab].jsonl"}, "val-2": {"files": "sub/*"}}},
        exports=[
            {"format": "parquet", "shard_size": 3 * 120},
            {"format": "parquet", "name": "whole"},
            "bin",
            "jsonl",
            "pickle",
        ],
    )
    built = build(dataset)
    return {export.name: built.export(export.name).output.folder for export in dataset.exports}

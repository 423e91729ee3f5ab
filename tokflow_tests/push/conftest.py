from pathlib import Path

import pytest

from tokflow_tests.tiny import TEXTS, build, declare


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

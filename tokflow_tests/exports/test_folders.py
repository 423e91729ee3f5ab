"""Folders of exports, read by libraries that know nothing of tokflow."""

import pandas as pd
import pyarrow.dataset as ds
import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow_tests.tiny import EOS, build, declare

OF_ARROW = {"parquet": "parquet", "easydel": "parquet", "arrow": "ipc", "jsonl": "json"}
"""The name that pyarrow has for the files of a format."""

ROWS = [[*b"seve"], [*b"n t", EOS], [*b"thre"], [*b"e", EOS, EOS, EOS]]
"""Of both parts."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    split = {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}
    folder, files = tmp_path_factory.mktemp("built"), {"a.jsonl": ["seven t", "three"]}
    dataset = declare(folder, files, exports=[*OF_ARROW], split=split)
    build(dataset)
    return dataset


@pytest.mark.parametrize("name", OF_ARROW)
def test_pyarrow_reads_the_folder_of_an_export_as_its_rows_alone(name: str, built: Dataset):
    found = ds.dataset(built.folder / "exports" / name / "latest", format=OF_ARROW[name])

    assert found.to_table()["input_ids"].to_pylist() == ROWS


@pytest.mark.parametrize("name", ["parquet", "easydel"])
def test_pandas_reads_the_folder_of_an_export_as_its_rows_alone(name: str, built: Dataset):
    found = pd.read_parquet(built.folder / "exports" / name / "latest")

    assert found["input_ids"].map(list).to_list() == ROWS

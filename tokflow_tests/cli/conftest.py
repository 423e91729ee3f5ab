import shutil
from pathlib import Path

import pytest

from tokflow_tests.tiny import TEXTS, write_raw, write_yaml


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_raw(tmp_path, TEXTS)
    return write_yaml(tmp_path)


@pytest.fixture
def store(built_small: Path, config: Path) -> Path:
    """The store of `config`, built."""
    shutil.copytree(built_small / "store", config.parent / "store", symlinks=True)
    return config.parent / "store/small"

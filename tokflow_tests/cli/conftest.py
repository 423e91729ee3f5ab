import shutil
from pathlib import Path

import pytest

from tokflow_tests.cli.commands import run
from tokflow_tests.tiny import TEXTS, write_raw, write_yaml


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_raw(tmp_path, TEXTS)
    return write_yaml(tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small dataset, built."""
    folder = tmp_path_factory.mktemp("built")
    write_raw(folder, TEXTS)
    assert run("run", "--config", write_yaml(folder)).exit_code == 0
    return folder


@pytest.fixture
def store(built: Path, config: Path) -> Path:
    """The store of `config`, built."""
    shutil.copytree(built / "store", config.parent / "store", symlinks=True)
    return config.parent / "store/small"

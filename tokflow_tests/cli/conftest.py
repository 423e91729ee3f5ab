import shutil
from pathlib import Path

import pytest

from tokflow_tests.hub import Hub
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


@pytest.fixture
def writable(writable: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", writable.url)  # which 1.3 looks at
    return writable

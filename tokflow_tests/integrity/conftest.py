from collections.abc import Iterator
from pathlib import Path

import pytest

from tokflow_tests.integrity.store import build_all, write_remote
from tokflow_tests.raw.servers import served


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where one of the raw files is fetched from."""
    folder = tmp_path_factory.mktemp("served")
    write_remote(folder)
    with pytest.MonkeyPatch.context() as patch, served(folder) as url:
        patch.setenv("no_proxy", "127.0.0.1")
        yield url


@pytest.fixture(scope="session")
def built(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset of every kind of file, built once."""
    folder = tmp_path_factory.mktemp("built")
    build_all(folder, url)
    return folder


@pytest.fixture(scope="session")
def stages(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same dataset and one export, which a copy of takes little."""
    folder = tmp_path_factory.mktemp("stages")
    build_all(folder, url, exports=["mds"])
    return folder

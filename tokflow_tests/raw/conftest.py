"""A file on a web server of these tests, and on an object store."""

from collections.abc import Iterator

import fsspec
import pytest

from tokflow_tests.raw.fetching import Server, serving


@pytest.fixture(autouse=True)
def short_waits(monkeypatch) -> None:
    monkeypatch.setattr("tokflow.raw.remote_version.FIRST_WAIT_SECONDS", 0.01)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with serving(Server()) as server:
        yield server


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    file_system = fsspec.filesystem("memory")
    file_system.store.clear()
    yield file_system
    file_system.store.clear()

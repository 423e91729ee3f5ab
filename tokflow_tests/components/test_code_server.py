"""Code servers that are asked to load their code anew."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import grpc
import pytest

from tokflow.components.build_job import _build_selected, asset_job, build_asset
from tokflow.components.code_server import API, reload_code
from tokflow_tests.dagster_case import QUIET, Case


@contextmanager
def code_server(address: str, *, loads: bool) -> Iterator[None]:
    """Serve what Dagster's code servers answer: another id after they loaded their code anew."""
    ids = ["1"]

    def answer(method: str) -> Any:
        def handle(request: bytes, context: object) -> bytes:
            if method == "ReloadCode" and loads:
                ids.append("2")
            return ids[-1].encode()

        return grpc.unary_unary_rpc_method_handler(handle)

    methods = {name: answer(name) for name in ("GetServerId", "ReloadCode")}
    server = grpc.server(ThreadPoolExecutor(1))
    name = API.removeprefix("/")
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods)])
    server.add_insecure_port(address)
    server.start()
    yield
    server.stop(None)


def run_of(**server: object) -> Any:
    """Return what a run says of its code server."""
    location = SimpleNamespace(code_location_origin=SimpleNamespace(**server))
    return SimpleNamespace(remote_job_origin=SimpleNamespace(repository_origin=location))


@pytest.mark.parametrize("loads", [True, False])
def test_a_server_is_reloaded_where_it_has_another_id_afterwards(loads: bool, tmp_path: Path):
    socket = tmp_path / "code"

    with code_server(f"unix:{socket}", loads=loads):
        assert reload_code(run_of(socket=str(socket), host="localhost", port=None)) is loads


def test_a_run_without_a_server_that_answers_reloads_nothing(tmp_path: Path):
    assert not reload_code(run_of(socket=str(tmp_path / "gone"), host="localhost", port=None))
    assert not reload_code(run_of(loadable_target_origin="of a web server alone"))
    assert not reload_code(dg.DagsterRun("of_this_process"))


def test_a_run_of_an_edited_yaml_says_what_to_press_where_nothing_can_be_reloaded(case: Case):
    loaded = case.dataset
    case.attributes["owners"] = ["team:other"]

    said = []
    for dataset in (loaded, case.dataset):
        assets = build_asset(loaded, partial(_build_selected, dataset))
        job = asset_job(loaded, assets)
        run = job.execute_in_process(QUIET, instance=case.instance)
        logs = case.instance.all_logs(run.run_id)
        said.append([of.user_message for of in logs if "press Reload" in of.user_message])

    assert said[0] == []
    [warning] = said[1]
    assert warning.startswith("small was edited after its code location was loaded: pages show")

"""Assets and the build job of Dagster, whose tasks run on a cluster of Ray."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow.pipeline import lines, tasks
from tokflow.pipeline.run import build_dataset
from tokflow_tests.dagster_case import Case, failure
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.on_ray.conftest import Nodes

KEYS = ["a.txt", "b.txt", "c.txt"]
ON_RAY: dict[str, Any] = {"resources": {"tokflow_workers": {"config": {"pool": "ray"}}}}


@pytest.fixture
def case(
    nodes: Nodes,
    object_store: ObjectStore,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Case]:
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(tasks, "MADE_TOGETHER", 1)
    monkeypatch.setattr(lines, "SECONDS", 0.0)
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions("small_files", KEYS)
        case = Case(tmp_path, instance)
        case.attributes["store"] = f"{object_store.url}/store"
        yield case


def log_of(case: Case, run_id: str) -> list[str]:
    records = case.instance.get_records_for_run(run_id).records
    return [record.event_log_entry.user_message for record in records]


def assert_same_as_here(case: Case, result: dg.ExecuteInProcessResult) -> None:
    assert result.success, failure(result)
    there = {made.output.asset: made.manifest for made in build_dataset(case.dataset).made}
    case.attributes["store"] = "here"
    here = {made.output.asset: made.manifest for made in build_dataset(case.dataset, jobs=1).made}
    assert there == here


def test_assets_are_materialized_with_progress_in_the_log(case: Case) -> None:
    result = case.run(keys=KEYS, config=ON_RAY)

    said = log_of(case, result.run_id)
    assert any("3 documents" in line and "%" in line for line in said), said
    assert all(case.event("tokens", partition=key) for key in KEYS)
    assert_same_as_here(case, result)


def test_the_build_job_runs_on_the_cluster_that_its_config_or_the_environment_names(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKFLOW_POOL", "ray")
    job = case.defs.resolve_job_def("small_build")

    result = job.execute_in_process(instance=case.instance, raise_on_error=False)

    monkeypatch.delenv("TOKFLOW_POOL")
    assert any("3 files: " in line for line in log_of(case, result.run_id))
    assert_same_as_here(case, result)

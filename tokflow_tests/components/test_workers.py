"""Claims about the processes that a step of Dagster works with."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from tokflow.components import recorded_build
from tokflow.pools import open_pool
from tokflow.pools.pool import Pool
from tokflow_tests.dagster_case import KEYS, Case, failure


@pytest.fixture
def case(case: Case) -> Case:
    case.instance.add_dynamic_partitions("small_files", KEYS)
    return case


def test_a_run_s_config_says_how_many_processes_work_and_nothing_is_written_where_it_says(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[Any, ...]] = []

    def open_asked(*of_config: Any) -> Pool:
        asked.append(of_config)
        return open_pool(1, "local")  # that no byte depends on their number pipeline/test_jobs says

    monkeypatch.setattr(recorded_build, "open_pool", open_asked)
    resources = {
        "tokflow_workers": {"config": {"jobs": 2, "pool": "local"}},
        "io_manager": {"config": {"base_dir": str(case.folder / "elsewhere")}},
    }

    result = case.run(keys=KEYS, config={"resources": resources})

    assert result.success, failure(result)
    assert set(asked) == {(2, "local")}
    assert not (case.folder / "elsewhere").exists()


def test_builds_which_take_all_cores_wait_for_their_like(case: Case):
    [assets] = case.defs.assets or ()

    assert set(assets.op.pools) == {"tokflow"}
    config = yaml.safe_load((Path(__file__).parents[2] / "dagster.yaml").read_text())
    assert config["concurrency"]["pools"] == {"granularity": "run", "default_limit": 1}


def leaves(schema: Any, *path: str) -> dict[str, str]:
    """Return the kind of each value that a config may have, by its path."""
    fields = getattr(schema, "fields", None)
    if not fields:
        return {".".join(path): schema.kind.name}
    return {
        name: kind
        for key, field in fields.items()
        for name, kind in leaves(field.config_type, *path, key).items()
    }


def test_a_run_s_config_says_no_more_than_how_many_processes_work_and_where(case: Case):
    jobs = case.defs.get_repository_def().get_all_jobs()

    found = {job.name: leaves(job.run_config_schema.config_type) for job in jobs}

    assert {"__ASSET_JOB", "small_build", "small_scan"} <= set(found)
    for name, kinds in found.items():
        # A job of assets takes an empty config for a step, and an op of a job any, unread.
        own = {path for path, kind in kinds.items() if kind not in ("ANY", "STRICT_SHAPE")}
        own = {path for path in own if path.split(".")[0] not in ("execution", "loggers")}
        of_dagster = "resources.io_manager.config.base_dir"  # for values; steps have none
        ours = {f"resources.tokflow_workers.config.{field}" for field in ("jobs", "pool")}
        assert own <= {*ours, of_dagster}, name


def test_no_variable_of_the_environment_comes_into_a_run_by_its_config(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET", "hunter2")
    secret = {"env": "SECRET"}
    workers = [
        {"resources": {"tokflow_workers": {"config": {field: secret}}}}
        for field in ("jobs", "pool")
    ]

    for config in (*workers, {"ops": {"small_build_all": {"config": secret}}}):
        with pytest.raises(dg.DagsterInvalidConfigError) as refused:
            case.run(keys=KEYS, config=config)
        assert "hunter2" not in str(refused.value)
        with pytest.raises(dg.DagsterInvalidConfigError) as refused:
            case.defs.resolve_job_def("small_build").execute_in_process(config)
        assert "hunter2" not in str(refused.value)

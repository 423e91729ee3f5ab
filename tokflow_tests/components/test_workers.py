"""Claims about the processes that a step of Dagster works with."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from tokflow.components import steps
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

    monkeypatch.setattr(steps, "open_pool", open_asked)
    resources = {
        "tokflow_workers": {"config": {"jobs": 2, "pool": "local"}},
        "io_manager": {"config": {"base_dir": str(case.folder / "elsewhere")}},
    }

    result = case.run(keys=KEYS, config={"resources": resources})

    assert result.success, failure(result)
    assert set(asked) == {(2, "local")}
    assert not (case.folder / "elsewhere").exists()


def test_what_takes_all_cores_waits_for_its_like_and_downloads_do_not(case: Case):
    def pools(*path: str) -> set[str]:
        [asset] = [of for of in case.defs.assets or () if dg.AssetKey(["small", *path]) in of.keys]
        return set(asset.op.pools)

    assert pools("raw") == set()
    for path in (("tokenizer",), ("tokens",), ("split",), ("sequences",), ("exports", "bin")):
        assert pools(*path) == {"tokflow"}
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

    for config in (*workers, {"ops": {"small__tokens": {"config": secret}}}):
        with pytest.raises(dg.DagsterInvalidConfigError) as refused:
            case.run(keys=KEYS, config=config)
        assert "hunter2" not in str(refused.value)
    unread = {"ops": {"small_build_all": {"config": secret}}}
    build = case.defs.resolve_job_def("small_build")
    result = build.execute_in_process(run_config=unread, instance=case.instance)

    records = case.instance.get_records_for_run(result.run_id).records
    assert result.success
    assert "hunter2" not in str([record.event_log_entry for record in records])

import uuid
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import open_instance
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import TEXTS, write_raw, write_yaml


def test_garbage_is_listed_and_removed_with_its_checks_where_it_is_said_so(
    store: Path, config: Path
):
    write_yaml(config.parent, packing={"sequence_length": 16})
    assert " of it no longer referred to; `tokflow gc" in run("run", "--config", config).stdout

    (dry,) = json_of("gc", "--config", config, "--keep", "1")["datasets"]
    assert len(dry["folders"]) == 5
    assert all(Path(folder).is_dir() for folder in dry["folders"])
    assert "would be removed by --yes" in run("gc", "--config", config, "--keep", "1").stdout

    (done,) = json_of("gc", "--config", config, "--keep", "1", "--yes")["datasets"]
    assert done["folders"] == dry["folders"]
    assert not any(Path(folder).exists() for folder in dry["folders"])
    nothing = run("gc", "--config", config, "--keep", "1")
    assert nothing.stdout == "small: nothing to remove\n"


def test_no_garbage_is_removed_where_one_of_the_datasets_is_not_built(store: Path, config: Path):
    write_yaml(config.parent, packing={"sequence_length": 16})
    assert " of it no longer referred to; `tokflow gc" in run("run", "--config", config).stdout
    before = sorted(store.rglob("*"))
    other = config.parent / "other"
    write_raw(other, TEXTS)

    result = run("gc", "--config", config, "--config", write_yaml(other), "--keep", "0", "--yes")

    assert result.exit_code == 1
    assert "13 of 13 outputs missing" in result.stderr
    assert sorted(store.rglob("*")) == before


@dg.job
def job() -> None: ...


@pytest.mark.usefixtures("home")
def test_old_runs_are_counted_and_removed_with_yes():
    run_id = str(uuid.uuid4())
    with open_instance() as instance:
        status = dg.DagsterRunStatus.SUCCESS
        instance.create_run_for_job(job, run_id=run_id, status=status)

        counted = json_of("prune-runs", "--days", "0")
        assert counted == {"is_dry_run": True, "removed": [run_id], "kept": []}
        assert instance.get_run_by_id(run_id) is not None

        assert "1 run " in run("prune-runs", "--days", "0", "--yes").stdout
        assert instance.get_run_by_id(run_id) is None

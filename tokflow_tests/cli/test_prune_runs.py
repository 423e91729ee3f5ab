import uuid

import dagster as dg
import pytest

from tokflow.components import open_instance
from tokflow_tests.cli.commands import json_of, run


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

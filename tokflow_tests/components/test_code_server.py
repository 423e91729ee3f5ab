import json
import uuid

import dagster as dg
import pytest

from tokflow.components.instance import end_lost_runs


@dg.job
def job() -> None: ...


def launched(host: str) -> dict[str, str]:
    return {".dagster/grpc_info": json.dumps({"host": host, "port": 4000})}


RUN = str(uuid.uuid4())


@pytest.mark.parametrize(
    ("tags", "is_ended"),
    [
        ({}, False),
        (launched("code"), True),
        (launched("another"), False),
        ({"tokflow/process": f"{RUN} 5c1e boot machine 7"}, True),
        ({"tokflow/process": f"{RUN} another boot machine 7"}, False),
        ({"tokflow/process": "copied-from-a-run 5c1e boot machine 7"}, False),
    ],
)
@pytest.mark.parametrize(
    ("status", "ended"),
    [("STARTED", "FAILURE"), ("CANCELING", "CANCELED"), ("SUCCESS", "SUCCESS")],
)
def test_runs_of_a_container_that_is_gone_are_ended(
    tags: dict[str, str], is_ended: bool, status: str, ended: str
):
    with dg.DagsterInstance.ephemeral() as instance:
        now = dg.DagsterRunStatus(status)
        instance.create_run_for_job(job, run_id=RUN, tags=tags, status=now)

        end_lost_runs(instance, {"code", "5c1e"})

        run = instance.get_run_by_id(RUN)
        assert run is not None
        assert run.status.value == (ended if is_ended else status)

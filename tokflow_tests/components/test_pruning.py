import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import instance as pruning
from tokflow.components.instance import find_old_runs, remove_runs


@dg.op
def tell(context: dg.OpExecutionContext) -> None:
    partition = context.run.tags.get("partition")
    if context.run.tags["event"] == "materialization":
        context.log_event(dg.AssetMaterialization("asset", partition=partition))
    if context.run.tags["event"] == "observation":
        context.log_event(dg.AssetObservation("asset", partition=partition))


@dg.job(executor_def=dg.in_process_executor)
def job() -> None:
    tell()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield instance


def run(instance: dg.DagsterInstance, event: str = "none", **tags: str) -> str:
    return job.execute_in_process(instance=instance, tags={"event": event, **tags}).run_id


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("event", ["materialization", "observation"])
def test_runs_with_the_latest_event_of_an_asset_or_a_partition_are_needed(
    event: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pruning, "AT_ONCE", 1)
    run(instance, event, partition="a")
    a, b = run(instance, event, partition="a"), run(instance, event, partition="b")
    run(instance, event)
    whole = run(instance, event)
    run(instance)

    old = find_old_runs(instance, before=now())

    assert old.needed == (whole, b, a)
    assert len(old.removable) == 3
    assert set(old.needed).isdisjoint(old.removable)


def test_runs_that_go_on_or_ended_later_are_not_old(instance: dg.DagsterInstance):
    ended = run(instance)
    started = str(uuid.uuid4())
    status = dg.DagsterRunStatus.STARTED
    instance.create_run_for_job(job, run_id=started, status=status)

    assert find_old_runs(instance, before=now()).removable == (ended,)
    assert find_old_runs(instance, before=now() - timedelta(hours=1)).removable == ()


def test_a_run_is_removed_with_its_events_and_what_it_printed(tmp_path: Path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        gone, kept = run(instance), run(instance)
        paths = [tmp_path / "storage" / of / "compute_logs" for of in (gone, kept)]
        assert all(path.is_dir() for path in paths)

        remove_runs(instance, [gone])

        assert [of.run_id for of in instance.get_runs()] == [kept]
        assert instance.all_logs(gone) == []
        assert [path.exists() for path in paths] == [False, True]

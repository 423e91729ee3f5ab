"""Builds that the sensor asks for, tick by tick."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import instance_for_test

from tokflow.components import (
    BuildOptions,
    decisions,
    file_partitions,
    make_definitions,
    run_build_job,
)
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.store.atomic import boot
from tokflow.views.picture import has_report
from tokflow_tests.dagster_case import QUIET, Case, Sensor
from tokflow_tests.tiny import many_ids

BUILD = ["small_build"]
STARTED = dg.DagsterRunStatus.STARTED
THE_ID = "0" * 32


@contextmanager
def case_in(folder: Path) -> Iterator[Case]:
    with dg.DagsterInstance.ephemeral() as instance:
        case = Case(folder, instance)
        case.attributes |= {"exports": ["parquet"], "automation": True}
        yield case


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with case_in(tmp_path) as case:
        yield case


@pytest.fixture(scope="module")
def built_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sensor]:
    with case_in(tmp_path_factory.mktemp("built")) as case:
        yield built(case)


@pytest.fixture
def automation(case: Case, built_before: Sensor) -> Sensor:
    """The automation of `case`, which was built before the first tick and has settled."""
    case.become(built_before.case)
    automation = Sensor(case)
    automation.cursor = built_before.cursor
    return automation


def build(case: Case) -> None:
    run_build_job(case.instance, graph_of(case.dataset, offline=True))


def built(case: Case) -> Sensor:
    """Return the automation of a dataset that was built before its first tick."""
    build(case)
    automation = Sensor(case)
    assert automation.settle() == []
    return automation


def num_events(case: Case, *path: str) -> int:
    """Return how often an asset was materialized."""
    key = dg.AssetKey(["small", *path])
    return len(case.instance.fetch_materializations(key, limit=1_000).records)


def store(case: Case, *path: str) -> Path:
    """Return the only output in a folder of the store."""
    [folder] = [of for of in (case.dataset.folder.joinpath(*path)).iterdir() if not of.is_symlink()]
    return folder


CHANGES: dict[str, Callable[[Case], Any]] = {
    "edit": lambda case: case.write("b", "new\ntext\n"),
    "add": lambda case: case.write("d", "new\n"),
    "delete": lambda case: case.remove("a"),
    "packing": lambda case: case.attributes.update(packing={"sequence_length": 8}),
    "eos": lambda case: case.attributes.update(tokenizer={"kind": "bytes", "eos": "none"}),
    "tokenizer": lambda case: case.attributes.update(
        tokenizer={"kind": "trained", "vocab_size": 270}
    ),
    "output deleted": lambda case: shutil.rmtree(store(case, "tokens", "b.txt")),
    "stage deleted": lambda case: shutil.rmtree(case.dataset.folder / "sequences"),
    "file of an output deleted": lambda case: (
        store(case, "tokens", "c.txt") / "tokens.bin"
    ).unlink(),
    "file of an export deleted": lambda case: (
        store(case, "exports", "parquet") / "train-00000-of-00001.parquet"
    ).unlink(),
    "history wiped": lambda case: case.instance.wipe_assets([dg.AssetKey(["small", "sequences"])]),
    "partition deleted": lambda case: case.instance.delete_dynamic_partition(
        "small_files", "b.txt"
    ),
    "partition added": lambda case: case.instance.add_dynamic_partitions(
        "small_files", ["none.txt"]
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_asks_for_a_build(change: str, case: Case, automation: Sensor):
    CHANGES[change](case)

    assert [of.job_name for of in automation.tick()] == BUILD


def test_the_export_is_made_once_for_changes_of_files(case: Case, automation: Sensor):
    for change in ("edit", "add", "delete", "partition added", "history wiped"):
        CHANGES[change](case)

    assert automation.settle() == BUILD

    assert case.not_fresh() == {}
    assert sorted(case.partitions()) == list(graph_of(case.dataset).partitions)
    assert num_events(case, "exports", "parquet") == 2
    assert num_events(case, "tokens") == 5


def test_a_file_touched_and_a_partition_made_again_the_same_build_nothing(
    case: Case, automation: Sensor
):
    (case.folder / "raw/a.txt").touch()
    case.run(dg.AssetSelection.assets(["small", "sequences"]), keys=["b.txt"])

    assert automation.settle() == []


def test_another_file_of_the_tokenizer_is_a_build(case: Case):
    file = case.folder / "tokenizer.json"
    file.write_text(many_ids(10))
    case.attributes["tokenizer"] = {"kind": "file", "name": file.name, "eos_token": "<eos>"}
    automation = built(case)

    file.write_text(many_ids(10) + "\n")

    assert automation.settle() == BUILD
    assert case.not_fresh() == {}


def test_what_somebody_else_built_is_recorded(case: Case):
    automation = Sensor(case)
    build_dataset(case.dataset)

    assert automation.settle() == BUILD
    assert case.not_fresh() == {}
    case.write("b", "new\n")
    build_dataset(case.dataset)
    assert automation.settle() == BUILD
    assert case.not_fresh() == {}


def broken(case: Case) -> Sensor:
    """Return the automation of a dataset that was built before one file became bad."""
    case.attributes["documents"] = {"format": "jsonl"}
    for key in ("a", "b", "c"):
        case.write(key, '{"text": "good"}\n')
    automation = built(case)
    case.write("b", "{broken\n")
    return automation


def test_a_bad_file_is_tried_once_and_again_when_something_is_missing_or_it_is_fixed(case: Case):
    automation = broken(case)
    assert automation.settle() == BUILD
    assert "(FAILURE) left" in automation.said

    shutil.rmtree(store(case, "tokens", "a.txt"))

    assert automation.settle() == BUILD
    assert automation.settle() == []

    case.write("b", '{"text": "fixed"}\n')

    assert automation.settle() == BUILD
    assert case.not_fresh() == {}


def test_builds_that_see_another_yaml_than_the_sensor_come_to_an_end(case: Case):
    loaded = copy(case)
    loaded.attributes = dict(case.attributes)
    automation = built(loaded)
    case.attributes |= {"documents": {"format": "jsonl"}}  # by which every file is bad
    case.write("b", "new\n")

    num_builds = 0
    while requests := automation.tick():
        Sensor(case).run(*requests)  # Dagster loads the YAML anew for each run
        num_builds += 1
        assert num_builds < 3

    assert "another follows when something changes" in automation.said
    assert automation.tick() == []
    case.write("b", "other\n")
    assert len(automation.tick()) == 1


def test_a_bad_file_that_somebody_built_in_vain_is_not_tried_again(case: Case):
    case.attributes["documents"] = {"format": "jsonl"}
    automation = Sensor(case)
    build(case)  # every file is bad

    assert automation.settle() == []
    assert "(FAILURE) left" in automation.said
    graph = graph_of(case.dataset, offline=True)
    run_build_job(case.instance, graph, BuildOptions(partitions=["a.txt"]))
    assert automation.settle() == []


def asked_of(automation: Sensor) -> dg.DagsterRun:
    """Return the run that a tick asks for, which nobody begins."""
    [request] = automation.tick()
    job = automation.case.defs.resolve_job_def("small_build")
    return automation.case.instance.create_run_for_job(job, tags=dict(request.tags))


def test_a_build_that_is_queued_or_running_is_waited_for(case: Case):
    automation = Sensor(case)
    run = asked_of(automation)

    assert automation.tick() == []
    waits = f"small: waits for run {run.run_id[:8]} of small_build"
    assert automation.said == f"{waits}; cancel it if its machine is gone"


@pytest.mark.parametrize(("dataset", "num_builds"), [("small", 0), ("other", 1)])
def test_a_run_of_some_of_its_assets_is_waited_for(dataset: str, num_builds: int, case: Case):
    @dg.asset(key=[dataset, "split"])
    def split() -> None: ...

    some = dg.define_asset_job("some", selection=[split])
    job = dg.Definitions(assets=[split], jobs=[some]).resolve_job_def("some")
    case.instance.create_run_for_job(job, asset_selection=frozenset([split.key]))

    assert len(Sensor(case).tick()) == num_builds


def test_a_canceled_build_is_not_asked_for_before_something_changes(case: Case):
    automation = Sensor(case)
    case.instance.report_run_canceled(asked_of(automation))

    assert automation.settle() == []
    assert "(CANCELED) left 11 outputs" in automation.said
    case.write("d", "new\n")
    assert automation.settle() == BUILD


def test_a_build_whose_process_was_killed_is_asked_for_three_times(case: Case):
    automation = Sensor(case)

    for _ in range(3):
        case.instance.report_run_failed(asked_of(automation))

    assert automation.settle() == []
    assert "(FAILURE) left" in automation.said


def test_a_build_that_was_killed_is_begun_again(case: Case, monkeypatch: pytest.MonkeyPatch):
    automation = Sensor(case)
    Sensor(case).run(dg.RunRequest(job_name="small_build"))
    build(case)
    case.write("b", "new\n")
    for run in case.instance.get_runs():  # each is of this process
        job = case.defs.resolve_job_def("small_build")
        tags = {key: of.replace(run.run_id, THE_ID) for key, of in run.tags.items()}
        case.instance.create_run_for_job(job, run_id=THE_ID, tags=tags, status=STARTED)
        assert automation.tick() == []
        monkeypatch.setattr("tokflow.components.instance.boot", lambda: "another")
        assert len(automation.tick()) == 1
        case.instance.delete_run(THE_ID)
        monkeypatch.setattr("tokflow.components.instance.boot", boot)


@pytest.mark.parametrize("by", ["tokflow", "dagster"])
def test_a_failed_run_that_dagster_cannot_repeat_is_not_waited_for(by: str, tmp_path: Path):
    retries = {"run_retries": {"enabled": True, "max_retries": 2}}
    with instance_for_test(overrides=retries, temp_dir=str(tmp_path)) as instance:
        case = Case(tmp_path, instance)
        case.attributes |= {"automation": True, "documents": {"format": "jsonl"}}
        if by == "tokflow":
            build(case)  # every file is bad
        else:
            Sensor(case).run(dg.RunRequest(job_name="small_build"))
        automation = Sensor(case)

        assert automation.settle() == []

        assert "(FAILURE) left" in automation.said
        [run] = instance.get_runs()
        assert run.is_complete_and_waiting_to_retry == (by == "dagster")


def test_a_file_that_is_being_written_waits(
    case: Case, automation: Sensor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(decisions, "CALM_SECONDS", 60.0)
    case.write("b", "new\n")

    assert automation.tick() == []
    assert "waits for a.txt, b.txt, c.txt, which may still be" in automation.said
    case.write("b", "new\nlines\n")
    assert automation.tick() == []
    assert "waits for a.txt, b.txt" in automation.said
    assert len(automation.tick()) == 1  # the same in two looks


def test_too_much_to_read_within_a_tick_is_left_to_the_build(
    case: Case, automation: Sensor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_partitions, "QUICK_BYTES", 1)
    for key in ("a", "b"):
        (case.folder / f"raw/{key}.txt").touch()

    assert automation.settle() == BUILD
    assert num_events(case, "exports", "parquet") == 1


def test_an_hourly_scan_looks_once_an_hour(case: Case, monkeypatch: pytest.MonkeyPatch):
    case.attributes["scan"] = "hourly"
    at_ten = 1_767_261_600.0
    clock = [at_ten - 60]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    monkeypatch.setattr(decisions, "CALM_SECONDS", -1e12)
    automation = Sensor(case)

    assert automation.settle() == []  # not at once
    clock[0] = at_ten
    assert automation.settle() == BUILD
    case.write("b", "new\n")
    clock[0] += 59 * 60
    assert automation.settle() == []
    assert automation.said == "small: looks again when it is time: hourly"
    clock[0] += 2 * 60
    assert automation.settle() == BUILD


def test_a_dataset_that_cannot_be_listed_keeps_no_other_waiting(case: Case):
    case.attributes["name"] = "other"
    other = case.dataset
    case.attributes |= {"name": "small", "raw": {"files": "nowhere/*.txt"}}
    defs = make_definitions(case.dataset, other)

    sensor = defs.resolve_sensor_def("tokflow_files")
    result = sensor(dg.build_sensor_context(instance=case.instance))

    assert [request.job_name for request in result.run_requests] == ["other_build"]


def test_the_sensor_is_on_where_a_dataset_asks_for_automation(case: Case):
    def status() -> dict[str, dg.DefaultSensorStatus]:
        return {sensor.name: sensor.default_status for sensor in case.defs.sensors or ()}

    assert status() == {"tokflow_files": dg.DefaultSensorStatus.RUNNING}
    del case.attributes["automation"]
    assert status() == {"tokflow_files": dg.DefaultSensorStatus.STOPPED}


def test_a_schedule_builds_at_its_times(case: Case):
    assert list(case.defs.schedules or ()) == []
    case.attributes |= {"schedule": "0 3 * * *", "timezone": "Europe/Berlin"}

    [schedule] = case.defs.schedules or ()

    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.name, schedule.job_name) == ("small_schedule", "small_build")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 3 * * *", "Europe/Berlin")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING


@pytest.mark.usefixtures("automation")
def test_a_scheduled_build_confirms_exports_that_did_not_change(case: Case):
    case.attributes["schedule"] = "0 3 * * mon-fri"
    [spec] = [of for of in case.defs.resolve_all_asset_specs() if of.key.path[1] == "exports"]

    job = case.defs.resolve_job_def("small_build")
    tags = {"dagster/schedule_name": "small_schedule"}
    job.execute_in_process(instance=case.instance, tags=tags, run_config=QUIET)

    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(
        fail_window=timedelta(days=6), warn_window=timedelta(days=4.5)
    )
    assert num_events(case, "exports", "parquet") == 2
    assert num_events(case, "tokens") == 3
    assert case.not_fresh() == {}


def test_a_cursor_that_is_not_the_sensors_is_begun_anew(case: Case, automation: Sensor):
    case.attributes["scan"] = "* * * * *"

    for cursor in ("abc", "7", '["small"]', '{"small": null}', '{"small": {"looked": "x"}}'):
        automation.cursor = cursor
        assert automation.tick() == []


@pytest.mark.skipif(not has_report(), reason="needs the extra [report]")
def test_a_report_is_asked_for_and_one_that_fails_waits_for_a_change(
    automation: Sensor, monkeypatch: pytest.MonkeyPatch
):
    case = automation.case
    case.attributes["report"] = True

    with monkeypatch.context() as patch:
        patch.setattr("tokflow.views.report_page.check_report", _fail)
        assert automation.settle() == BUILD
    assert "left the history of report; another follows when something changes" in automation.said

    case.write("b", "other\ntext\nhere\n")

    assert automation.settle() == BUILD
    assert case.not_fresh() == {}


def _fail(_: str) -> None:
    raise MemoryError("too little")

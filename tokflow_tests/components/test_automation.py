"""What the automation sensor asks for, tick by tick."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import dagster as dg
import pytest

from tokflow.build.graph import BuildGraph
from tokflow.components import run_build_job, sync_files
from tokflow_tests.dagster_case import Case

KEYS = ["a.txt", "b.txt", "c.txt"]


class Automation:
    """The automation sensor's ticks, and the runs that it asks for."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.cursor = None

    def tick(self) -> dict[str, list[str]]:
        """Return what a tick asks for: asset to partitions; an empty list is one without."""
        instance = self.case.instance
        # The tester asks for the partitions thousands of times; the daemon asks once a tick.
        known = cache(instance.get_dynamic_partitions)
        with patch.object(instance, "get_dynamic_partitions", known):
            result = dg.evaluate_automation_conditions(
                defs=self.case.defs,
                instance=instance,
                asset_selection=dg.AssetSelection.groups("small"),
                cursor=self.cursor,
            )
        self.cursor = result.cursor
        requested = {}
        for key in sorted(self.case.defs.get_repository_def().asset_graph.get_all_asset_keys()):
            if result.get_num_requested(key):
                partitions = result.get_requested_partitions(key)
                requested["/".join(key.path[1:])] = sorted(filter(None, partitions))
        return requested

    def tick_and_run(self) -> dict[str, list[str]]:
        """Run what a tick asks for: one run for what has partitions and one for the rest."""
        requested = self.tick()
        if partitions := sorted({key for keys in requested.values() for key in keys}):
            self.case.run(_selection([a for a, keys in requested.items() if keys]), keys=partitions)
        if whole := [asset for asset, keys in requested.items() if not keys]:
            self.case.run(_selection(whole))
        return requested

    def settle(self) -> list[dict[str, list[str]]]:
        """Tick and run until nothing is asked for."""
        ticks = []
        while requested := self.tick_and_run():
            ticks.append(requested)
            assert len(ticks) < 9, ticks
        return ticks


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with dg.DagsterInstance.ephemeral() as instance:
        case = Case(tmp_path, instance)
        case.attributes["exports"] = ["parquet"]
        sync_files(instance, case.dataset)
        yield case


def built(case: Case) -> Automation:
    """Return the automation of a dataset that was built before its first tick."""
    run_build_job(case.instance, BuildGraph(case.dataset, offline=True))
    automation = Automation(case)
    assert automation.tick() == {}
    return automation


@pytest.mark.xfail(reason="conditions of assets go: issue 12")
def test_what_was_missing_when_the_sensor_started_is_built(case: Case):
    assert Automation(case).settle() == [
        {"tokenizer": []},
        {"tokens": KEYS, "split": KEYS, "sequences": KEYS},
        {"exports/parquet": []},
    ]
    assert case.not_fresh() == {}


def test_a_look_that_finds_no_change_asks_for_nothing(case: Case):
    automation = built(case)

    sync_files(case.instance, case.dataset)

    assert automation.settle() == []


def test_a_changed_file_is_built_again_and_no_other(case: Case):
    automation = built(case)
    case.write("b", "new\ntext\n")
    sync_files(case.instance, case.dataset)

    assert automation.settle() == [
        {"tokens": ["b.txt"], "split": ["b.txt"], "sequences": ["b.txt"]},
        {"exports/parquet": []},
    ]
    assert case.not_fresh() == {}


@pytest.mark.xfail(reason="conditions of assets go: issue 12")
def test_a_new_file_is_built_before_the_export(case: Case):
    automation = built(case)
    case.write("d", "new\n")
    sync_files(case.instance, case.dataset)

    assert automation.settle() == [
        {"tokens": ["d.txt"], "split": ["d.txt"], "sequences": ["d.txt"]},
        {"exports/parquet": []},
    ]
    assert case.not_fresh() == {}


def test_a_file_that_is_gone_leaves_the_export(case: Case):
    automation = built(case)
    case.remove("a")
    sync_files(case.instance, case.dataset)

    assert automation.settle() == [{"exports/parquet": []}]
    assert case.not_fresh() == {}


def test_another_config_makes_again_what_it_decides(case: Case):
    automation = built(case)
    case.attributes["packing"] = {"sequence_length": 8}

    assert automation.settle() == [{"sequences": KEYS}, {"exports/parquet": []}]
    assert case.not_fresh() == {}


def test_a_bad_file_is_tried_once_and_again_when_it_changes(case: Case):
    case.attributes["documents"] = {"format": "jsonl"}
    for key in ("a", "b", "c"):
        case.write(key, '{"text": "good"}\n')
    automation = built(case)
    case.write("b", "{broken\n")
    sync_files(case.instance, case.dataset)

    while_broken = automation.settle()
    case.write("b", '{"text": "mended"}\n')
    sync_files(case.instance, case.dataset)

    of_b = {"tokens": ["b.txt"], "split": ["b.txt"], "sequences": ["b.txt"]}
    assert while_broken[0] == of_b
    assert automation.settle() == [of_b, {"exports/parquet": []}]
    assert case.not_fresh() == {}


@pytest.mark.xfail(reason="conditions of assets go: issue 12")
def test_a_new_file_that_is_bad_is_tried_once(case: Case):
    case.attributes["documents"] = {"format": "jsonl"}
    for key in ("a", "b", "c"):
        case.write(key, '{"text": "good"}\n')
    automation = built(case)
    case.write("d", "{broken\n")
    sync_files(case.instance, case.dataset)

    ticks = automation.settle()

    assert ticks == [{"tokens": ["d.txt"], "split": ["d.txt"], "sequences": ["d.txt"]}]


@pytest.mark.xfail(reason="conditions of assets go: issue 12")
def test_tokens_wait_for_the_tokenizer_that_a_new_file_changes(case: Case):
    case.attributes["tokenizer"] = {"kind": "trained", "vocab_size": 270}
    automation = built(case)
    case.write("d", "new words that come often, new words that come often\n" * 9)
    sync_files(case.instance, case.dataset)

    ticks = automation.settle()

    assert ticks[0] == {"tokenizer": []}
    assert ticks[1] == {stage: [*KEYS, "d.txt"] for stage in ("tokens", "split", "sequences")}
    assert case.not_fresh() == {}
    assert not _failures(case)


def test_offsets_over_the_dataset_wait_for_all_tokens(case: Case):
    case.attributes["split"] = {
        "scope": "dataset",
        "parts": {"train": {"characters": 40}, "validation": {"start": 40}},
    }
    automation = built(case)
    case.write("b", "new\ntext\n")
    sync_files(case.instance, case.dataset)

    ticks = automation.settle()

    assert ticks[0] == {"tokens": ["b.txt"]}
    assert case.not_fresh() == {}
    assert not _failures(case)


def test_the_sensor_is_on_and_the_schedule_off(case: Case):
    sensors = {sensor.name: sensor.default_status for sensor in case.defs.sensors or ()}
    schedules = {s.name: s.default_status for s in case.defs.schedules or ()}

    assert sensors == {
        "small_files": dg.DefaultSensorStatus.RUNNING,
        "small_automation": dg.DefaultSensorStatus.RUNNING,
    }
    assert schedules == {"small_hourly_scan": dg.DefaultScheduleStatus.STOPPED}


def _selection(assets: list[str]) -> dg.AssetSelection:
    return dg.AssetSelection.assets(*(dg.AssetKey(["small", *a.split("/")]) for a in assets))


def _failures(case: Case) -> list[str]:
    runs = case.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    return [str(run.asset_selection) for run in runs]

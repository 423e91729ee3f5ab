"""Dagster over raw files and a store at an object store: what it shows, and what a look costs."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components.file_partitions import sync_files
from tokflow_tests.dagster_case import Case, Sensor, failure, pasted, selection, shown
from tokflow_tests.object_store import ObjectStore


class CaseElsewhere(Case):
    """A small dataset of which nothing is on this disk but what is cached."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, there: ObjectStore) -> None:
        self.there = there
        super().__init__(folder, instance)
        self.attributes |= {
            "raw": {"files": f"{there.url}/raw/*.txt"},
            "store": f"{there.url}/store",
            "automation": True,
            "exports": ["bin"],
        }

    def write(self, name: str, text: str) -> None:
        self.there.put(f"raw/{name}.txt", text.encode())

    def remove(self, name: str) -> None:
        self.there.remove(f"raw/{name}.txt")


@pytest.fixture
def case(tmp_path: Path, object_store: ObjectStore) -> Iterator[CaseElsewhere]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield CaseElsewhere(tmp_path, instance, object_store)


def shown_of(event: dg.AssetMaterialization) -> dict[str, str]:
    return {key: pasted(value) for key, value in event.metadata.items()}


def test_the_sensor_builds_what_is_new_and_changed_and_then_asks_for_lists_alone(
    case: CaseElsewhere, tmp_path: Path
):
    case.attributes["raw"] = {
        "files": [f"{case.there.url}/{of}" for of in ("raw/*.txt", "raw/of/e.txt")]
    }
    case.there.put("raw/of/e.txt", b"named\n")
    sensor = Sensor(case)
    first = sensor.settle()
    raw = shown_of(case.event("raw", partition="a.txt"))
    made = [case.event("tokens", partition="a.txt"), case.event("exports", "bin")]
    before = [case.data_version("tokens", partition=key) for key in ("b.txt", "of/e.txt")]
    case.write("b", "another\n")
    case.there.put("raw/of/e.txt", b"edited\n")
    case.write("d", "new\n")
    case.remove("a")
    second = sensor.settle()
    with case.there.counted() as count:
        asked = sensor.tick()

    assert (first, second) == (["small_build"], ["small_build"])
    assert sorted(case.partitions()) == ["b.txt", "c.txt", "d.txt", "of/e.txt"]
    after = [case.data_version("tokens", partition=key) for key in ("b.txt", "of/e.txt")]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False]
    assert case.not_fresh() == {}
    assert (asked, sensor.said) == ([], "small: up to date")
    # Verdicts, manifests, raw files: one for each thousand, and one for each that is named.
    assert count == {"LIST": 3, "HEAD": 1}
    assert raw["dagster/uri"] == raw["path"] == f"{case.there.url}/raw/a.txt"
    for shown_there in map(shown_of, made):
        assert shown_there["dagster/uri"] == shown_there["folder"]
        assert shown_there["folder"].startswith(f"{case.there.url}/store/small/")
        assert str(tmp_path / "cache") not in json.dumps(shown_there)
        assert "not-to-be-shown" not in json.dumps([raw, shown_there])


def test_a_tick_that_cannot_list_the_raw_files_is_skipped_with_a_line(
    case: CaseElsewhere, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.store.requests.NUM_TRIES", 1)
    case.there.fail("500", "LIST", "raw/*", times=None)
    sensor = Sensor(case)

    assert sensor.tick() == []
    assert sensor.said.startswith(
        f"small: {case.there.url}/raw: expected a store that answers, found InternalError: "
    )


def test_each_step_may_run_on_a_machine_that_has_nothing_yet(case: CaseElsewhere, tmp_path: Path):
    sync_files(case.instance, case.dataset)
    first = case.run(keys=case.partitions())
    shutil.rmtree(tmp_path / "cache")
    again = case.run(selection("exports", "bin"))
    shutil.rmtree(tmp_path / "cache")
    checked = case.run(dg.AssetSelection.all_asset_checks())

    assert [run.success for run in (first, again, checked)] == [True] * 3, failure(checked)
    assert shown(case.event("exports", "bin").metadata["details"])["made by this run"] == "no"
    checks = checked.get_asset_check_evaluations()
    assert checks
    assert all(check.passed for check in checks)


def test_a_code_location_is_loaded_without_a_request(case: CaseElsewhere):
    with case.there.counted() as count:
        case.defs.get_repository_def()

    assert count == {}

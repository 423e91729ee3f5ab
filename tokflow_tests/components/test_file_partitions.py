"""Dagster's list of raw files follows what is there."""

import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import file_partitions
from tokflow.components.file_partitions import SyncedFiles, record_status, sync_files
from tokflow.errors import ConfigError
from tokflow.pipeline.mixture import graph_of
from tokflow_tests.dagster_case import KEYS, Case, Sensor, failure, reported, selection, shown


def test_new_files_become_partitions_in_batches_and_a_scan_writes_one_event(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_partitions, "KEYS_AT_ONCE", 2)
    (case.folder / "raw/old.txt").mkdir()

    synced = sync_files(case.instance, case.dataset)

    assert synced == SyncedFiles(added=("a.txt", "b.txt", "c.txt"))
    assert case.partitions() == KEYS
    event = case.event("files")
    assert event.metadata["num_files"].value == 3
    (record,) = event.metadata["left_out"].records
    assert {of: cell.replace("\u200b", "") for of, cell in record.data.items()} == {
        "path": f"{case.folder}/raw/old.txt",
        "found": "a folder without a txt file",
    }
    assert case.not_fresh()["raw:b.txt"] == "MISSING"
    second = sync_files(case.instance, case.dataset)
    assert second == SyncedFiles()
    assert str(second) == "raw files: no change"
    assert case.event("files") == event


def test_tokens_are_recorded_after_the_raw_file_that_dagster_had_not_heard_of(case: Case):
    sync_files(case.instance, case.dataset)
    case.run(selection("tokenizer"))

    for text in ("first\n", "edited\nsince the scan\n"):
        case.write("b", text)
        case.run(selection("tokens"), keys=["b.txt"])

        sha256 = graph_of(case.dataset).raw_file("b.txt").sha256
        assert case.data_version("raw", partition="b.txt") == sha256
        assert not {"raw:b.txt", "tokens:b.txt"} & set(case.not_fresh())

    assert sync_files(case.instance, case.dataset) == SyncedFiles()
    case.run(selection("raw"), keys=["a.txt"])
    assert not {"raw:b.txt", "tokens:b.txt"} & set(case.not_fresh())


def test_nothing_is_retired_when_the_files_cannot_be_listed(case: Case):
    sync_files(case.instance, case.dataset)
    case.remove("a")
    case.remove("b")
    case.remove("c")

    with pytest.raises(ConfigError, match="at least one file that matches"):
        sync_files(case.instance, case.dataset)
    assert case.partitions() == KEYS


def test_the_sensor_registers_files_and_launches_nothing(case: Case):
    ticks = Sensor(case)

    assert ticks.tick() == []
    assert "3 added (a.txt, b.txt, c.txt)" in ticks.said
    assert case.partitions() == KEYS
    case.run(selection("raw"), keys=KEYS)
    case.write("b", "new\n")
    assert ticks.tick() == []
    assert "1 changed (b.txt)" in ticks.said


def test_the_sensor_leaves_what_takes_long_to_the_scan_job(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_partitions, "QUICK_BYTES", 10)
    ticks = Sensor(case)

    [request] = ticks.tick()

    assert request.job_name == "small_scan"
    assert case.partitions() == []
    assert ticks.run(request).success
    assert case.partitions() == KEYS
    assert ticks.tick() == []


@pytest.mark.parametrize("end", ["report_run_failed", "report_run_canceled"])
def test_a_scan_that_failed_is_asked_for_again_and_one_under_way_is_not(
    end: str, case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_partitions, "QUICK_BYTES", 10)
    ticks = Sensor(case)

    for _ in range(3):
        [request] = ticks.tick()
        assert request.run_key is None
        job = case.defs.resolve_job_def("small_scan")
        run = case.instance.create_run_for_job(job, tags=dict(request.tags))
        assert ticks.tick() == []
        getattr(case.instance, end)(run)


def test_what_no_scan_makes_quick_is_not_scanned_for_ever(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_partitions, "QUICK_BYTES", -1)
    ticks = Sensor(case)

    assert ticks.settle() == ["small_scan", "small_scan"]  # the second after a change of state
    assert "has scanned the files" in ticks.said or "no change" in ticks.said


def test_groups_are_partitions_with_their_files_in_the_metadata(case: Case):
    case.attributes["raw"]["group"] = 2

    assert sync_files(case.instance, case.dataset).added == ("group/a.txt", "group/c.txt")

    assert case.run(keys=["group/a.txt", "group/c.txt"]).success
    assert case.not_fresh() == {}
    files = case.event("raw", partition="group/a.txt").metadata["files"].records
    assert [record.data["raw file"] for record in files] == ["a.txt", "b.txt"]
    case.write("c", "another line\nof a file\nthat another joins\n")
    case.write("d", "a new one\n")
    assert sync_files(case.instance, case.dataset) == SyncedFiles(changed=("group/c.txt",))
    assert case.not_fresh()["tokens:group/c.txt"] == "STALE"
    case.remove("c")
    case.remove("d")
    assert sync_files(case.instance, case.dataset) == SyncedFiles(removed=("group/c.txt",))


def states(case: Case) -> dict[str, str]:
    records = case.event("files").metadata["status"].records
    return {of.data["file"]: of.data["state"] for of in records}


def test_the_list_of_files_has_the_state_of_each_what_failed_first(case: Case):
    case.attributes["documents"] = {"text": "text", "format": "jsonl"}
    for name in "abc":
        case.write(name, '{"text": "good"}\n')
    case.job()
    assert states(case) == {"a.txt": "built", "b.txt": "built", "c.txt": "built"}
    case.write("c", "{broken\n")

    case.job()
    case.write("b", '{"text": "other"}\n')
    case.write("d", '{"text": "new"}\n')
    sync_files(case.instance, case.dataset)
    record_status(case.instance, case.dataset)

    metadata = case.event("files").metadata
    assert list(states(case).items()) == [
        ("c.txt", "failed"),
        ("b.txt", "stale"),
        ("d.txt", "new"),
        ("a.txt", "built"),
    ]
    problems = str(metadata["problems"].value)
    assert r"**c\.txt** failed" in problems
    assert "broken" in problems
    assert "file changed" in problems
    summary = shown(metadata["summary"])
    assert [summary[of] for of in ("files", "failed", "stale", "new", "built")] == list("41111")
    assert metadata["num_failed"].value == 1


TAKEN = ["a.txt", "b.txt"]

DOCUMENTS = {"document_per": "line", "limit": {"documents": 4, "scope": "dataset"}}


@pytest.fixture
def limited(case: Case) -> Case:
    """Return a dataset of three files of three documents, of which a limit takes four."""
    case.attributes["documents"] = deepcopy(DOCUMENTS)
    return case


@pytest.fixture(scope="module")
def built_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    with dg.DagsterInstance.ephemeral() as instance:
        case = Case(tmp_path_factory.mktemp("built"), instance)
        case.attributes["documents"] = DOCUMENTS
        assert case.job().success
        yield case


@pytest.fixture
def built(limited: Case, built_before: Case) -> Case:
    """Return the dataset as the job has built it once; files and record are copies."""
    limited.become(built_before)
    return limited


def test_the_build_job_takes_files_until_the_limit_and_records_these_alone(limited: Case):
    result = limited.job()

    assert result.success, failure(result)
    assert limited.partitions() == TAKEN
    assert limited.not_fresh() == {}
    assert limited.event("files").metadata["num_files"].value == 2
    assert limited.event("tokens", partition="b.txt").metadata["num_documents"].value == 1
    assert reported(limited, limited.job()) == {}


def test_partitions_that_may_follow_stay_until_the_files_before_them_are_built(built: Case):
    built.write("a", "one\n")

    synced = sync_files(built.instance, built.dataset)

    assert (synced.changed, synced.removed) == (("a.txt",), ())
    assert built.partitions() == TAKEN


def test_the_sensor_asks_for_one_build_of_what_the_limit_takes(
    limited: Case, monkeypatch: pytest.MonkeyPatch
):
    limited.attributes |= {"exports": ["parquet"], "automation": True}
    for path in (limited.folder / "raw").iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))  # so that its checksum is kept
    sensor = Sensor(limited)

    assert sensor.settle() == ["small_build"]
    assert limited.partitions() == TAKEN
    limited.write("c", "behind the limit\n")
    with monkeypatch.context() as patch:
        patch.setattr(file_partitions, "QUICK_BYTES", 0)  # no file that is not read is a small one
        assert sensor.settle() == []
    limited.write("a", "other\n")
    assert sensor.settle() == ["small_build"]
    assert limited.not_fresh() == {}


def test_tokens_of_a_file_behind_the_limit_are_refused_by_name(built: Case):
    built.instance.add_dynamic_partitions("small_files", ["c.txt"])

    result = built.run(selection("tokens"), keys=["c.txt"])

    assert "c.txt: expected a file that documents.limit, of scope dataset, takes now" in failure(
        result
    )
    assert not Path(built.folder, "store/small/tokens/c.txt").exists()

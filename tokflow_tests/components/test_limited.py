"""Dagster's partitions, jobs and sensor where a limit of the dataset takes some of its files."""

import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import file_partitions
from tokflow.components.file_partitions import sync_files
from tokflow_tests.dagster_case import Case, Sensor, failure, reported, selection

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

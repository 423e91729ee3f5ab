"""Claims about the status of files on the page of the list of files."""

from typing import Any

import pytest

from tokflow.components.file_partitions import record_status, status_metadata, sync_files
from tokflow.components.markdown import MAX_CHARACTERS
from tokflow.pipeline.plan import Plan, make_plan
from tokflow.pipeline.status import FileStatus
from tokflow_tests.components.test_build_job import build
from tokflow_tests.dagster_case import QUIET, Case, shown


def states(case: Case) -> dict[str, str]:
    records = case.event("files").metadata["status"].records
    return {of.data["file"]: of.data["state"] for of in records}


def test_the_list_of_files_has_the_state_of_each_what_failed_first(case: Case):
    case.attributes["documents"] = {"text": "text", "format": "jsonl"}
    for name in "abc":
        case.write(name, '{"text": "good"}\n')
    build(case)
    assert states(case) == {"a.txt": "built", "b.txt": "built", "c.txt": "built"}
    case.write("c", "{broken\n")

    build(case)
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


def test_a_status_that_is_as_it_was_is_not_recorded_again(case: Case):
    build(case)
    before = case.instance.fetch_materializations(case.event("files").asset_key, limit=9).records

    record_status(case.instance, case.dataset)

    after = case.instance.fetch_materializations(case.event("files").asset_key, limit=9).records
    assert len(after) == len(before)
    assert case.not_fresh() == {}


def test_of_many_failures_as_many_are_explained_as_dagster_shows():
    reason = "expected a JSON object, found '{broken'; correct the line " * 9
    statuses = [FileStatus(key=f"f{n}", state="failed", reason=reason) for n in range(2_000)]

    _, tables = status_metadata(statuses, {})

    said = str(tables["problems"].value)
    assert len(said) <= MAX_CHARACTERS
    assert said.endswith("more, as `tokflow plan` says")
    assert tables["status"].value.records[-1].data["state"] == "and 1,000 more"


def test_of_files_that_are_as_they_should_be_a_few_are_listed():
    stale = [FileStatus(key=f"s{n}", state="stale", reason="changed") for n in range(200)]
    built = [FileStatus(key=f"f{n}", state="built") for n in range(400)]

    _, tables = status_metadata([*built, *stale], {"f0": 1_200})

    records = [of.data for of in tables["status"].value.records]
    assert [of["state"] for of in records] == [
        *["stale"] * 200,
        *["built"] * 100,
        "and 300 more",
    ]
    assert records[200]["bytes"] == "1.2 kB"


def test_a_scan_says_a_status_that_is_another_and_asks_for_one_plan(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    build(case)
    plans: list[object] = []

    def counted_plan(*arguments: Any, **how: Any) -> Plan:
        plans.append(arguments)
        return make_plan(*arguments, **how)

    monkeypatch.setattr("tokflow.components.file_partitions.make_plan", counted_plan)
    case.write("b", "other\n")
    scan = case.defs.resolve_job_def("small_scan")
    scan.execute_in_process(instance=case.instance, run_config=QUIET)

    assert states(case)["b.txt"] == "stale"
    assert len(plans) == 1

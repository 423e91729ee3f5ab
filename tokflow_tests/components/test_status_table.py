"""Claims about the status of files on the page of the list of files."""

from tokflow.build.status import FileStatus
from tokflow.components.file_partitions import record_status, sync_files
from tokflow.components.markdown import MAX_CHARACTERS
from tokflow.components.status_table import status_metadata
from tokflow_tests.components.test_build_job import build
from tokflow_tests.dagster_case import Case, shown


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

    _, tables = status_metadata(statuses)

    said = str(tables["problems"].value)
    assert len(said) <= MAX_CHARACTERS
    assert said.endswith("more, as `tokflow plan` says")
    assert tables["status"].value.records[-1].data["state"] == "and 1,000 more"

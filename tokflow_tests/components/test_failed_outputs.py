"""What a failing run leaves on Dagster's pages: failed partitions, assets, and a check."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from tokflow.components import run_build_job
from tokflow.components.assets import partition_set
from tokflow.components.checks import FILES_CHECK, check_files, failed_outputs
from tokflow.components.instance import find_old_runs
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.results import StageFailure
from tokflow.pipeline.status import FileStatus
from tokflow_tests.dagster_case import KEYS, Case, failure, is_built, selection, shown_failed

EXPORTS = {"exports/bin", "exports/parquet"}
OF_B = {"tokens:b.txt", "split:b.txt", "sequences:b.txt"}
BAD = b"not \xff UTF-8\n"


def break_b(case: Case) -> None:
    (case.folder / "raw/b.txt").write_bytes(BAD)


def failed(case: Case) -> set[str]:
    return shown_failed(case.instance, case.dataset)


def check_of(case: Case, *path: str, name: str = FILES_CHECK) -> dg.AssetCheckEvaluation:
    key = dg.AssetCheckKey(dg.AssetKey(["small", *(path or ["files"])]), name)
    record = case.instance.get_latest_asset_check_evaluation_record(key)
    assert record is not None
    return record.event.dagster_event.event_specific_data


@is_built
def test_a_bad_file_and_the_exports_have_failed_until_it_is_as_it_was(case: Case):
    good = (case.folder / "raw/b.txt").read_text()
    break_b(case)

    result = case.job()

    assert "1 of 3 files could not be built; the others were" in failure(result)
    assert failed(case) == OF_B | EXPORTS
    assert result.run_id in find_old_runs(case.instance, before=datetime.now(UTC)).needed
    [row] = check_of(case).metadata["not_built"].records
    assert (row.data["file"], row.data["state"]) == ("b.txt", "failed")
    assert "UTF-8" in str(row.data["cause"])
    assert row.data["remedy"]
    assert check_of(case).severity is dg.AssetCheckSeverity.ERROR

    case.write("b", good)  # whose outputs are in the store, and in Dagster, already
    assert case.job().success

    assert failed(case) == set()
    assert check_of(case).passed
    assert case.not_fresh() == {}


def test_a_tokenizer_that_cannot_be_made_has_failed_and_all_that_waits_for_it(case: Case):
    case.attributes |= {"tokenizer": {"kind": "file", "name": "gone.json"}, "report": True}

    assert "gone.json" in failure(case.job())

    of_files = {f"{stage}:{key}" for stage in ("tokens", "split", "sequences") for key in KEYS}
    assert failed(case) == {"tokenizer", *of_files, *EXPORTS, "report"}
    assert check_of(case).metadata["num_failed"].value == 3
    assert not case.instance.fetch_materializations(
        dg.AssetKey(["small", "report"]), limit=1
    ).records


@is_built
def test_a_range_of_one_asset_that_fails_makes_failed_what_waits_for_it(case: Case):
    break_b(case)

    case.run(selection("tokens"), keys=KEYS)

    of_range = failed(case)
    run_build_job(case.instance, graph_of(case.dataset, offline=True))  # as `tokflow run` does
    assert failed(case) == of_range == OF_B | EXPORTS
    assert not check_of(case).passed


@is_built
@pytest.mark.parametrize(("job", "and_exports"), [("small_build", EXPORTS), ("small_scan", set())])
def test_a_list_of_files_that_cannot_be_made_has_failed(
    job: str, and_exports: set[str], case: Case
):
    case.attributes["raw"] = {"files": "nowhere/*.txt"}

    case.job(job)

    assert failed(case) == {"files", *and_exports}


@is_built
def test_only_so_many_outputs_are_marked_and_those_without_partitions_come_first(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.components.checks.MAX_MARKED", 3)
    break_b(case)

    result = case.job()

    assert failed(case) == {"tokens:b.txt", *EXPORTS}
    lines = [of.user_message for of in case.instance.all_logs(result.run_id)]
    assert "2 more outputs failed, which the pages of assets do not show as failed" in lines


def test_the_check_of_many_files_shows_twenty_and_cuts_and_escapes_their_causes():
    reason = "\u202e" + "x" * 5_000
    failed = [FileStatus(key=f"f{n}", state="failed", reason=reason) for n in range(999)]
    new = [FileStatus(key="new", state="new")]

    result = check_files(dg.AssetKey(["small", "files"]), [*new, *failed])

    rows = [record.data for record in result.metadata["not_built"].records]
    assert len(rows) == 20
    assert str(rows[0]["cause"]).startswith("\\u202exxx")
    assert max(len(str(row)) for row in rows) < 600
    assert result.description == "999 files failed, 1 file not built yet"


def test_one_packing_that_fails_makes_failed_its_own_sequences_and_every_export(case: Case):
    short = {"format": "parquet", "packing": {"sequence_length": 4}}
    case.attributes["exports"] = ["pickle", short]
    failure_of_short = StageFailure("sequences", "b.txt", ValueError("x"), packing="parquet")

    found = failed_outputs(graph_of(case.dataset), [failure_of_short])

    assert sorted(found, key=str) == [
        ("export", "parquet", None),
        ("export", "pickle", None),
        ("sequences", "parquet", "b.txt"),
    ]


@is_built
def test_a_bad_file_that_is_left_out_has_failed_beside_green_exports_with_a_warning(case: Case):
    case.attributes["raw"] = {"files": "raw/*.txt", "on_bad_file": "skip"}
    good = (case.folder / "raw/b.txt").read_text()
    break_b(case)

    assert case.job().success

    assert failed(case) == {"tokens:b.txt"}
    check = check_of(case, "exports", "bin", name="has_all_files")
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "b.txt is left out: expected" in check.description
    assert check_of(case).severity is dg.AssetCheckSeverity.WARN
    assert "b.txt" in case.instance.get_dynamic_partitions(str(partition_set(case.dataset).name))

    case.write("b", good)
    assert case.job().success

    assert failed(case) == set()
    assert case.not_fresh() == {}

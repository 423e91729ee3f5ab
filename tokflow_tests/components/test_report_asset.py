"""The report as an asset."""

import logging

import pytest

from tokflow.components import run_build_job
from tokflow.components.reports import MAX_CHARACTERS
from tokflow.pipeline.mixture import graph_of
from tokflow.store.store import Store
from tokflow.store.stored_outputs import walk
from tokflow.views.picture import has_report
from tokflow.views.report_page import REPORT_PATH
from tokflow_tests.dagster_case import Case, failure, pasted, reported, shown_failed

pytestmark = pytest.mark.skipif(not has_report(), reason="needs the extra [report]")


def test_a_report_is_made_last_and_one_that_cannot_be_drawn_is_a_warning_and_tried_again(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    case.attributes["report"] = True

    with monkeypatch.context() as patch:
        patch.setattr("tokflow.views.report_page.make_plan", _fail)
        result = case.job()

    assert result.success, failure(result)
    logged = case.instance.all_logs(result.run_id)
    (warning,) = [of.user_message for of in logged if of.level == logging.WARNING]
    assert warning.startswith("the report of small: expected")
    assert "found MemoryError: too little; run it where there is more" in warning
    assert case.not_fresh() == {"report": "MISSING"}

    assert reported(case, case.job()) == {"report": 1}

    assert case.not_fresh() == {}
    metadata = case.event("report").metadata
    assert next(iter(metadata)) == "report"
    folder = case.dataset.folder / "report"
    assert pasted(metadata["report"]) == f"python -m webbrowser {folder}/report.html"
    viewer = f"tokflow inspect {case.dataset.folder}/exports/bin --html viewer.html"
    assert pasted(metadata["viewers"]).split("\n")[0] == viewer
    assert "![Document lengths](data:image/svg+xml;base64," in str(metadata["pictures"].value)
    small = [str(metadata[of].value) for of in ("document_lengths", "split_shares")]
    assert small[0].startswith(r"9 documents of 3 files\; median ")
    assert small[1].split("\n")[2] == r"| train | ▇▇▇▇▇ | 67\.65 \% |"
    assert max(map(len, small)) <= MAX_CHARACTERS
    assert list(walk(Store(folder), folder)) == []  # nothing of note
    assert reported(case, case.job()) == {}

    (case.dataset.folder / REPORT_PATH).unlink()

    assert reported(case, case.job()) == {}
    assert (case.dataset.folder / REPORT_PATH).is_file()


def test_a_build_in_a_process_leaves_the_report_to_the_next_job_and_one_is_enough(case: Case):
    case.attributes |= {"report": True, "documents": {"text": "text", "format": "jsonl"}}
    case.write("a", '{"text": "good"}\n')

    failed = run_build_job(case.instance, graph_of(case.dataset, offline=True)).failure

    assert failed is not None
    assert not (case.dataset.folder / REPORT_PATH).exists()
    drawn = []
    for _ in range(2):  # the same files fail
        case.job()
        drawn.append((case.dataset.folder / REPORT_PATH).stat().st_mtime_ns)
    assert drawn[0] == drawn[1]
    assert "report" not in shown_failed(case.instance, case.dataset)


def _fail(*_: object) -> None:
    raise MemoryError("too little")

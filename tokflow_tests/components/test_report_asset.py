"""The report as an asset."""

from pathlib import Path

import dagster as dg
import pytest

from tokflow.components.dagster_names import asset_keys, parents
from tokflow.report import has_report
from tokflow_tests.components.test_build_job import build, reported
from tokflow_tests.dagster_case import Case, failure

pytestmark = pytest.mark.skipif(not has_report(), reason="needs the extra [report]")


def test_a_build_makes_the_report_last_and_its_pictures_are_in_the_metadata(case: Case):
    case.attributes["report"] = True

    result = build(case)

    assert result.success, failure(result)
    assert list(reported(result))[-1] == "report"
    metadata = case.event("report").metadata
    assert next(iter(metadata)) == "report"
    assert "(/tokflow/small/report)" in str(metadata["report"].value)
    pictures = [of for of in metadata.values() if "data:image/svg+xml;base64," in str(of.value)]
    assert pictures
    assert b"small" in Path(str(metadata["path"].value)).read_bytes()
    assert case.not_fresh() == {}
    assert "report" not in reported(build(case))


def test_the_report_is_made_of_the_exports_or_of_what_is_made_last(case: Case):
    case.attributes["report"] = True
    of_exports = parents(case.dataset, "report")
    case.attributes["exports"] = []

    assert [key.path for key in of_exports] == [
        ["small", "exports", "bin"],
        ["small", "exports", "parquet"],
    ]
    assert list(parents(case.dataset, "report")) == [dg.AssetKey(["small", "sequences"])]


def test_a_dataset_can_do_without_a_report(case: Case):
    case.attributes["report"] = False

    assert ("report", "") not in asset_keys(case.dataset)

"""Near-duplicates in Dagster: an asset of the whole dataset between those of files."""

import pytest

from tokflow.components import decisions
from tokflow_tests.dagster_case import KEYS, Case, Sensor


def test_pairs_of_all_files_are_an_asset_between_those_of_each(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(decisions, "CALM_SECONDS", 0.0)
    case.attributes |= {
        "near_duplicates": {"threshold": 0.4, "ngram": 3},
        "select": "not near_duplicate",
        "split": {"parts": {"train": {"start": 0}}},
        "automation": True,
    }
    assert case.job().success
    sensor = Sensor(case)
    assert sensor.settle() == []

    assert case.not_fresh() == {}
    assert pairs_and_kept(case) == (9, 3)

    case.write("b", "first of b\nnothing like it\n")
    assert sensor.settle() == ["small_build"]

    assert case.not_fresh() == {}
    assert pairs_and_kept(case) == (5, 4)


def pairs_and_kept(case: Case) -> tuple[int, int]:
    selections = [case.event("selection", partition=key).metadata for key in KEYS]
    num_kept = sum(of["num_documents"].value for of in selections)
    return case.event("near_duplicates").metadata["num_pairs"].value, num_kept


def test_the_keep_rate_of_each_file_is_drawn_also_where_nothing_is_kept(case: Case):
    case.attributes |= {"select": "file != 'a.txt'", "split": {"parts": {"train": {"start": 0}}}}
    assert case.job().success

    rates = [case.event("selection", partition=key).metadata["kept_fraction"] for key in KEYS]

    assert [of.value for of in rates] == [0.0, 1.0, 1.0]

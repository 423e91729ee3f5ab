"""`exclude` in Dagster: an asset of the whole dataset between the tokens and the selections."""

from pathlib import Path

import pytest

from tokflow.components import decisions
from tokflow_tests.dagster_case import KEYS, Case, Sensor


def write(folder: Path, *rows: str) -> None:
    (folder / "list.csv").write_text("\n".join(["file,row,reason", *rows, ""]))


def test_what_a_list_names_is_an_asset_and_another_list_is_built_by_the_sensor(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(decisions, "CALM_SECONDS", 0.0)
    write(case.folder, "a.txt,1,asked", "b.txt,7,asked")
    split = {"parts": {"train": {"start": 0}}}
    case.attributes |= {"exclude": "list.csv", "split": split, "automation": True}
    assert case.job().success
    sensor = Sensor(case)
    assert sensor.settle() == []
    assert counts_of(case) == (1, 2, [2, 3, 3])

    write(case.folder, "a.txt,1,asked", "b.txt,0,asked", "b.txt,2,asked")

    assert sensor.settle() == ["small_build"]
    assert case.not_fresh() == {}
    assert counts_of(case) == (3, 3, [2, 1, 3])


def counts_of(case: Case) -> tuple[int, int, list[int]]:
    """Return the documents that are excluded, the rows of the list, and the documents that are kept
    of each file."""
    found = case.event("exclusion").metadata
    kept = [case.event("selection", partition=of).metadata["num_documents"].value for of in KEYS]
    return found["num_documents"].value, found["num_list_rows"].value, kept

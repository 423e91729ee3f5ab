"""Stages between the tokens and the selections that are of the whole dataset, in Dagster."""

from pathlib import Path
from typing import Any

from tokflow_tests.dagster_case import KEYS, Case, Sensor


def settled(case: Case, **attributes: Any) -> Sensor:
    """Return the sensor of a dataset that the job has built."""
    case.attributes |= {"split": {"parts": {"train": {"start": 0}}}, **attributes}
    assert case.job().success
    sensor = Sensor(case)
    assert sensor.settle() == []
    assert case.not_fresh() == {}
    return sensor


def num_kept(case: Case) -> list[int]:
    """Return the documents that are kept of each file."""
    kept = (case.event("selection", partition=of).metadata["num_documents"] for of in KEYS)
    return [of.value for of in kept]


def test_what_a_list_names_is_an_asset_and_another_list_is_built_by_the_sensor(case: Case):
    def write(*rows: str) -> None:
        Path(case.folder, "list.csv").write_text("\n".join(["file,row,reason", *rows, ""]))

    def counts() -> tuple[int, int, list[int]]:
        found = case.event("exclusion").metadata
        return found["num_documents"].value, found["num_list_rows"].value, num_kept(case)

    write("a.txt,1,asked", "b.txt,7,asked")
    sensor = settled(case, exclude="list.csv", automation=True)
    assert counts() == (1, 2, [2, 3, 3])

    write("a.txt,1,asked", "b.txt,0,asked", "b.txt,2,asked")

    assert sensor.settle() == ["small_build"]
    assert case.not_fresh() == {}
    assert counts() == (3, 3, [2, 1, 3])


def test_pairs_of_all_files_are_an_asset_between_those_of_each(case: Case):
    def counts() -> tuple[int, int]:
        pairs = case.event("near_duplicates").metadata["num_pairs"].value
        return pairs, sum(num_kept(case))

    near = {"threshold": 0.4, "ngram": 3}
    sensor = settled(case, near_duplicates=near, select="not near_duplicate", automation=True)
    assert counts() == (9, 3)

    case.write("b", "first of b\nnothing like it\n")

    assert sensor.settle() == ["small_build"]
    assert case.not_fresh() == {}
    assert counts() == (5, 4)


def test_the_keep_rate_of_each_file_is_drawn_also_where_nothing_is_kept(case: Case):
    case.attributes |= {"select": "file != 'a.txt'", "split": {"parts": {"train": {"start": 0}}}}
    assert case.job().success

    rates = [case.event("selection", partition=key).metadata["kept_fraction"] for key in KEYS]

    assert [of.value for of in rates] == [0.0, 1.0, 1.0]
